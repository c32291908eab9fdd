"""Turn a job spec (YAML) into an artifact (plain text), without torch and without running anything.

Read in this order: reading/yaml_source.py, spec/job.py, spec/rules.py, plan.py, targets/, artifact.py.
"""

from pathlib import Path

_HERE = Path(__file__).parent
TEMPLATES = next(folder / "templates" for folder in (_HERE.parent, _HERE) if (folder / "templates").is_dir())
"""Beside jobspec in a checkout, inside jobspec if pip installed it."""
