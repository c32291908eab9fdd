"""Turn the values of a spec into a Job, or report every mistake at once."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import ValidationError

from jobspec.problems import SpecError
from jobspec.reading.yaml_source import Source
from jobspec.spec import rules
from jobspec.spec.job import Job
from jobspec.spec.rules import Rule, rules_in


def validate(source: Source, target_rules: Iterable[Rule] = ()) -> Job:
    """Return the job that the source describes.

    Raises SpecError with all mistakes: wrong keys, wrong values, and rules broken by keys that are each right.
    """
    every = [*rules_in(rules), *target_rules]
    try:
        job = Job.model_validate(source.values, strict=True)
    except ValidationError:
        from jobspec.reading.mistakes import mistakes  # only here: a correct spec does not need it

        raise SpecError(map(source.locate, mistakes(source, every))) from None
    if broken := [finding for rule in every for finding in rule.check(job)]:
        raise SpecError(map(source.locate, broken))
    return job
