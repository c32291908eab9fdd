"""Find every mistake of a wrong spec at once.

Pydantic makes no job from a spec with a wrong value, but the rules need a job.  So a placeholder replaces each wrong
value.  A rule that reads a placeholder stops there.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from jobspec.problems import Finding, Path
from jobspec.reading.wording import KEY, findings, model_at, suggested_paths, wrong_paths
from jobspec.reading.yaml_source import Source
from jobspec.spec.job import Job
from jobspec.spec.rules import Rule

# A placeholder for each wrong value that cannot simply be dropped: a required key, a list element (`key[]`), a value
# under a user-chosen name (`key{}`).
_PLACEHOLDERS: dict[str, Any] = {
    "name": "stand-in",
    "nodes": 1,
    "min": 1,
    "max": 1,
    "procs_per_node": 1,
    "path": "/stand-in",
    "key": "stand-in",
    "command[]": "stand-in",
    "files[]": "stand-in",
    "setup[]": "true",
    "prologue[]": "true",
    "epilogue[]": "true",
    "secrets[]": "STAND_IN",
    "mounts[]": {"source": "/stand-in", "path": "/stand-in"},
    "image_pull_secrets[]": "stand-in",
    "tolerations[]": {"operator": "Exists"},
    "topology_spread[]": {"key": "stand-in"},
    "devices{}": 1,
    "sweep{}": ["stand-in"],
    "gpu_types{}": {},
    "env{}": "",
    "options{}": True,
    "node_selector{}": "",
    "labels{}": "",
    "annotations{}": "",
}


def mistakes(source: Source, rules: Iterable[Rule]) -> list[Finding]:
    """Return the wrong keys and values of a wrong spec, and the rules that its correct ones break."""
    job, found, wrong = _read(source)
    placeholders = set(_remove_placeholders(job, wrong))
    broken = [finding for rule in rules for finding in _stop_at_placeholder(rule, job, placeholders)]
    # If a name must not be there at all, a mistake in its value does not matter.
    refused = {finding.path for finding in broken if finding.on_key and model_at(finding.path[:-1]) is None}
    found = [finding for finding in found if finding.path not in refused]
    return found + [finding for finding in broken if finding.path in refused or not _is_in(finding.path, wrong)]


def _read(source: Source) -> tuple[Job, list[Finding], set[Path]]:
    """Return the job with placeholders, the mistakes, and the paths of the mistakes."""
    values: Any = source.values
    found: list[Finding] = []
    wrong: set[Path] = set()
    while True:
        try:
            return Job.model_validate(values, strict=True), found, wrong
        except ValidationError as error:
            found += findings(error, source, wrong)
            values = copy.deepcopy(values)
            # Still wrong: no placeholder fits there, so the value around it is replaced instead.
            paths = {path[:-1] if path in wrong else path for path in wrong_paths(error)}
            for path in sorted(paths, key=str):
                _replace(values, path)
            wrong |= {path[:-1] if path[-1] == KEY else path for path in paths} | suggested_paths(error, source)


def _replace(values: Any, path: Path) -> None:
    """Drop a wrong value, or put a placeholder in its place if a value is required there."""
    *above, last = path
    parent: Any = values
    for part in above[:-1] if last == KEY else above:
        if isinstance(parent, dict) and part not in parent:
            return  # the key above this value was wrong itself, and has been dropped
        parent = parent[part]
    model = model_at(tuple(above))
    if last == KEY:
        parent.pop(above[-1], None)
    elif isinstance(parent, list):
        parent[int(last)] = copy.copy(_PLACEHOLDERS.get(f"{above[-1]}[]", "stand-in"))
    elif model is None and last in parent:
        parent[last] = _PLACEHOLDERS.get(f"{above[-1]}{{}}", "")
    elif model is not None:
        parent.pop(last, None)
        if str(last) in model.model_fields and model.model_fields[str(last)].is_required():
            parent[last] = _PLACEHOLDERS[str(last)]


def _remove_placeholders(job: Job, wrong: Iterable[Path]) -> Iterator[tuple[int, str]]:
    """Make the keys at these paths raise an AttributeError; yield each as its model's id and its name."""
    for path in sorted(wrong, key=len):  # parents first: a section removed as a whole holds no keys
        model: Any = job
        for part in path[:-1]:
            if isinstance(model, BaseModel):
                model = model.__dict__.get(str(part))
            else:
                model = model[part] if isinstance(model, list) and isinstance(part, int) else None
        if isinstance(model, BaseModel):
            model.__dict__.pop(str(path[-1]), None)
            yield id(model), str(path[-1])


def _stop_at_placeholder(rule: Rule, job: Job, placeholders: set[tuple[int, str]]) -> Iterator[Finding]:
    """Yield what a rule finds until it reads a placeholder."""
    try:
        yield from rule.check(job)
    except AttributeError as error:
        if (id(error.obj), error.name) not in placeholders:
            raise


def _is_in(path: Path, places: set[Path]) -> bool:
    """Return True if a path is one of these places or below one."""
    return any(path[: len(place)] == place for place in places)
