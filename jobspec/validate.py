"""Values of a spec → Job, or every mistake in it at once.

Pydantic makes no job of a spec with a wrong value, and the rules need a job.  So what is wrong is replaced, and then
hidden: a rule ends where it reads a key whose value is not the person's own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from jobspec import rules
from jobspec.problems import Finding, Path, SpecError
from jobspec.rules import Rule, rules_in
from jobspec.source import Source
from jobspec.spec import Job
from jobspec.wording import KEY, fault_paths, findings, meant_paths, model_at

# What stands for a wrong value that cannot just be left out: of a required key, of an element of a list (`key[]`), of
# a name of the person's own (`key{}`).
_STAND_INS: dict[str, Any] = {
    "name": "stand-in",
    "nodes": 1,
    "min": 1,
    "max": 1,
    "procs_per_node": 1,
    "path": "/stand-in",
    "key": "stand-in",
    "command[]": "stand-in",
    "secrets[]": "STAND_IN",
    "mounts[]": {"source": "/stand-in", "path": "/stand-in"},
    "image_pull_secrets[]": "stand-in",
    "tolerations[]": {"operator": "Exists"},
    "topology_spread[]": {"key": "stand-in"},
    "env{}": "",
    "options{}": True,
    "node_selector{}": "",
    "labels{}": "",
    "annotations{}": "",
}


def validate(source: Source, target_rules: Iterable[Rule] = ()) -> Job:
    """The job that the source describes.

    Raises SpecError with all mistakes: wrong keys and values, and broken rules over keys that are right in
    themselves.
    """
    job, found, wrong = _read(source)
    hidden = set(_hide(job, wrong))
    broken = [finding for rule in [*rules_in(rules), *target_rules] for finding in _until_hidden(rule, job, hidden)]
    if wrong:
        # A name that must not be there at all makes its value a matter of indifference.
        refused = {finding.path for finding in broken if finding.on_key and model_at(finding.path[:-1]) is None}
        found = [finding for finding in found if finding.path not in refused]
        broken = [finding for finding in broken if finding.path in refused or not _is_in(finding.path, wrong)]
    if found or broken:
        raise SpecError(source.locate(finding) for finding in [*found, *broken])
    return job


def _read(source: Source) -> tuple[Job, list[Finding], set[Path]]:
    """The job with replacements for what is wrong, the mistakes, and where they are."""
    values: Any = source.values
    found: list[Finding] = []
    wrong: set[Path] = set()
    while True:
        try:
            return Job.model_validate(values, strict=True), found, wrong
        except ValidationError as error:
            found += findings(error, source, wrong)
            values = copy.deepcopy(values)
            # Wrong again: the replacement does not fit there, so what is around it has to go, too.
            paths = {path[:-1] if path in wrong else path for path in fault_paths(error)}
            for path in sorted(paths, key=str):
                _replace(values, path)
            wrong |= {path[:-1] if path[-1] == KEY else path for path in paths} | meant_paths(error, source)


def _replace(values: Any, path: Path) -> None:
    """Take what is wrong out of the values, or put something right in its place where something must be."""
    *above, last = path
    parent: Any = values
    for part in above[:-1] if last == KEY else above:
        parent = parent[part]
    model = model_at(tuple(above))
    if last == KEY:
        parent.pop(above[-1], None)
    elif isinstance(parent, list):
        parent[int(last)] = copy.copy(_STAND_INS[f"{above[-1]}[]"])
    elif model is None and last in parent:
        parent[last] = _STAND_INS[f"{above[-1]}{{}}"]
    elif model is not None:
        parent.pop(last, None)
        if str(last) in model.model_fields and model.model_fields[str(last)].is_required():
            parent[last] = _STAND_INS[str(last)]


def _hide(job: Job, wrong: Iterable[Path]) -> Iterator[tuple[int, str]]:
    """Make the keys at these paths raise an AttributeError; each as its model's id and its name."""
    for path in sorted(wrong, key=len):  # a section that is hidden as a whole is not the person's own
        model: Any = job
        for part in path[:-1]:
            if isinstance(model, BaseModel):
                model = model.__dict__.get(str(part))
            else:
                model = model[part] if isinstance(model, list) and isinstance(part, int) else None
        if isinstance(model, BaseModel):
            model.__dict__.pop(str(path[-1]), None)
            yield id(model), str(path[-1])


def _until_hidden(rule: Rule, job: Job, hidden: set[tuple[int, str]]) -> Iterator[Finding]:
    """What a rule finds before it reads a hidden key."""
    try:
        yield from rule.check(job)
    except AttributeError as error:
        if (id(error.obj), error.name) not in hidden:
            raise


def _is_in(path: Path, places: set[Path]) -> bool:
    """Whether a path is one of these places or below one."""
    return any(path[: len(place)] == place for place in places)
