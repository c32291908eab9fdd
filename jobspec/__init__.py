"""Turn a job spec (YAML) into an artifact (plain text), without torch and without running anything.

Read in this order: reading/yaml_source.py, spec/job.py, spec/rules.py, plan.py, targets/, artifact.py.
"""
