"""Turn a job spec (YAML) into an artifact (plain text), without torch and without running anything.

Read in this order: reading/yaml_source.py, spec/job.py, spec/rules.py, plan.py, targets/, artifact.py.
"""

import json
from collections.abc import Mapping
from os import PathLike
from typing import Any


def render(target: str, spec: str | PathLike[str] | Mapping[str, Any]) -> str:
    """Return the artifact of a spec, a file or a mapping, for a target such as "slurm".

    Raises SpecError, whose text names every mistake; OSError if the file cannot be read.
    """
    from jobspec import artifact
    from jobspec.reading.yaml_source import parse

    if not isinstance(spec, Mapping):
        return artifact.render(target, str(spec))
    return artifact.rendered(parse(json.dumps(spec, indent=1, ensure_ascii=False), "spec"), target, ["-"])
