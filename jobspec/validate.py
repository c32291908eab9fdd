"""Values of a spec → Job, or every mistake in it at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from jobspec import rules
from jobspec.problems import Finding, SpecError
from jobspec.rules import Rule, rules_in
from jobspec.source import Source
from jobspec.spec import Job
from jobspec.wording import findings
from train.config import nearest

# Stand for required keys that are wrong, so that the rest can still be checked.
_STAND_INS: dict[str, Any] = {"name": "stand-in", "nodes": 1, "procs_per_node": 1}


def validate(source: Source, target_rules: Iterable[Rule] = ()) -> Job:
    """The job that the source describes.

    Raises SpecError with all mistakes: wrong keys and values, and broken rules over keys that are right in
    themselves.
    """
    job, found, wrong = _read(source)
    for rule in [*rules_in(rules), *target_rules]:
        if wrong.isdisjoint(rule.keys):
            found += rule.check(job)
    if found:
        raise SpecError(source.locate(finding) for finding in found)
    return job


def _read(source: Source) -> tuple[Job, list[Finding], set[str]]:
    """The job without its wrong top-level keys, what is wrong with them, and their names."""
    try:
        return Job.model_validate(source.values, strict=True), [], set()
    except ValidationError as error:
        found = findings(error, source)
        wrong = {str(detail["loc"][0]) for detail in error.errors()}
    right = {key: value for key, value in source.values.items() if key not in wrong}
    # A misspelt key: what it stands for is not missing, only misspelt.
    meant = {nearest(key, Job.model_fields) for key in wrong} - {None, *right}
    job = Job.model_validate({**_STAND_INS, **right}, strict=True)
    return job, found, wrong | {str(key) for key in meant}
