"""Job spec (YAML) in, artifact (plain text) out.  No torch; nothing is run.

Read in this order: reading/yaml_source.py, spec/job.py, spec/rules.py, plan.py, targets/, artifact.py.
"""
