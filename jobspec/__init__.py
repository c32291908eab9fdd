"""Job spec (YAML) in, artifact (plain text) out.  No torch; nothing is run.

Read in this order: source.py, spec.py, rules.py, plan.py, targets/, artifact.py.
"""
