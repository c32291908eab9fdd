"""Turn the values of a spec into a Job, or report every mistake: first in the shape and types, then against rules."""

from collections.abc import Iterable

from pydantic import ValidationError

from jobspec.problems import SpecError
from jobspec.reading.yaml_source import Source
from jobspec.spec import rules
from jobspec.spec.job import Job
from jobspec.spec.rules import Rule


def validate(source: Source, target_rules: Iterable[Rule] = ()) -> Job:
    """Return the job; raise SpecError with all wrong keys and values or, if there are none, all broken rules."""
    try:
        job = Job.model_validate(source.values, strict=True)
    except ValidationError as error:
        from jobspec.reading.wording import findings  # only here: a correct spec does not need it

        raise SpecError(map(source.locate, findings(error, source))) from None
    if broken := [finding for rule in [*rules.RULES, *target_rules] for finding in rule(job)]:
        raise SpecError(map(source.locate, broken))
    return job
