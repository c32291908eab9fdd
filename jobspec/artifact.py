"""Turn spec files and a target into an artifact: every step, in order."""

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from jobspec import targets
from jobspec.filters import environment
from jobspec.plan import Plan, as_array, make_plan
from jobspec.problems import Finding, Problem, SpecError, option_place
from jobspec.reading import sweep
from jobspec.reading.merge import read_all
from jobspec.reading.override import override
from jobspec.reading.validate import validate
from jobspec.reading.yaml_source import Source
from jobspec.spec.doubts import doubts
from jobspec.spec.keys import given, only


def load(target: targets.Target, files: str | Sequence[str], overrides: Sequence[str] = ()) -> Plan:
    return plan_of(read(files, overrides), target)


def read(files: str | Sequence[str], overrides: Sequence[str] = (), notes: list[str] | None = None) -> Source:
    """Read the spec from one file, or from several merged left to right, and apply `--set` options; "-" is stdin."""
    return override(read_all(_listed(files), notes), overrides)


def plan_of(spec: Source, target: targets.Target) -> Plan:
    """Return the plan of a parsed spec for a target."""
    job = validate(spec, [*target.rules, partial(only, target.name, target.uses, target.not_used)])
    if spec.suffix:
        # All runs of a sweep share a label, and read one Secret: its default name is the job's without the number.
        labels = {"app.kubernetes.io/part-of": job.name, **job.kubernetes.labels}
        update = {"secret": job.kubernetes.secret or job.name, "labels": labels}
        kubernetes = job.kubernetes.model_copy(update=update)
        job = job.model_copy(update={"name": job.name + spec.suffix, "kubernetes": kubernetes})
    return make_plan(job, target.rendezvous_timeout_s, target.hides_the_node(job))


def plans_of(
    spec: Source, target: targets.Target, index: int | None = None, notes: list[str] | None = None
) -> list[Plan]:
    """Return the plans of a parsed spec: one, or one for each combination of its sweep if each is a separate object.

    index: the number of the only combination wanted.  notes: gets what looks odd in any of them.
    """
    specs = _specs_of(spec, target, index)
    number = sweep.size(spec) if index is None else 0
    plans, problems = [], []
    for one in specs:
        try:
            plans.append(plan_of(one, target))
        except SpecError as error:
            problems += error.problems
    if number and target.sweeps is None and not problems:
        message = f"sweep has {number} combinations, but this target runs only one job"
        hint = f"choose one with --sweep-index, 0 to {number - 1}"
        problems = [spec.locate(Finding(("sweep",), message, hint, on_key=True))]
    if problems:
        raise SpecError(problems)
    if notes is not None:
        jobs = (plan.job for plan in plans)
        notes += dict.fromkeys(
            odd
            for job in jobs
            for odd in (*doubts(job, target.hides_the_node(job), target.not_used), *target.doubts(job))
        )
    return [as_array(plans)] if number and target.sweeps == "array" else plans


def _specs_of(spec: Source, target: targets.Target, index: int | None = None) -> list[Source]:
    """Return the spec of each combination of a sweep, or only of number `index`; without a sweep, the spec itself."""
    number = sweep.size(spec)
    if index is not None and not 0 <= index < number:
        message, hint = f"the sweep has {number} combinations, numbered 0 to {number - 1}", ""
        if number == 0:
            message, hint = "the spec has no sweep", "leave --sweep-index out"
        raise SpecError([Problem(option_place("--sweep-index", str(index)), message, hint)])
    if number == 0:
        return [spec]
    specs = list(sweep.combinations(spec, named=target.sweeps != "array" or index is not None))
    return specs if index is None else [specs[index]]


def render(
    name: str,
    files: str | Sequence[str],
    overrides: Sequence[str] = (),
    notes: list[str] | None = None,
    sweep_index: int | None = None,
    output: str | None = None,
) -> str:
    """Render a spec for the target `name`, with the same bytes on any host; add what looks odd to `notes`."""
    words = [
        *(Path(file).name for file in _listed(files)),
        *(word for assignment in overrides for word in ("--set", assignment)),
        *(["--sweep-index", str(sweep_index)] if sweep_index is not None else []),
        *(["-o", Path(output).name] if output is not None else []),
    ]
    spec = read(files, overrides, notes)
    plans = plans_of(spec, targets.load(name), sweep_index, notes)
    file = f"{spec.values['name']}.{targets.ending(name)}" if output is None else Path(output).name
    return "".join(text_of(plan, name, shlex.join(["render-job", name, *words]), file) for plan in plans)


def _listed(files: str | Sequence[str]) -> Sequence[str]:
    return [files] if isinstance(files, str) else files


def text_of(plan: Plan, name: str, command: str, file: str) -> str:
    """Return the artifact of a plan for the target `name`; its head says that `command` made it, as `file`."""
    target = targets.load(name)
    values = target.template_values(plan)
    notes = [f"Not used here: {key}; {target.not_used[key]}." for key in given(plan.job) if key in target.not_used]
    notes += values.get("notes", plan.notes)
    values |= {"plan": plan, "job": plan.job, "command": command, "file": shlex.quote(file), "notes": notes}
    values["reason"] = target.reason(plan.job)
    return environment(targets.TEMPLATES).get_template(targets.template(name)).render(values)
