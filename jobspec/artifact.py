"""Spec file and target → artifact: the whole way, in order."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from pydantic import BaseModel

from jobspec import source, targets
from jobspec.override import override
from jobspec.plan import Plan, make_plan
from jobspec.rules import rules_in
from jobspec.spec import Job
from jobspec.text import render_template
from jobspec.validate import validate


def load(target: targets.Target, file: str, settings: Sequence[str] = ()) -> Plan:
    """The plan of a spec file for a target, after `--set` options.

    Raises SpecError with all mistakes, OSError if the file cannot be read.
    """
    return plan_of(override(source.parse(source.read(file), file), settings), target)


def plan_of(spec: source.Source, target: targets.Target) -> Plan:
    """The plan of a parsed spec for a target.  Raises SpecError with all mistakes."""
    return make_plan(validate(spec, rules_in(target)))


def render(name: str, file: str, settings: Sequence[str] = ()) -> str:
    """The artifact of a spec file for the target `name`.  Raises like `load`.

    It depends on the spec, its file name (without the folder), the settings and the templates: the same bytes
    on any host at any time.
    """
    words = [
        "render.py",
        name,
        Path(file).name,
        *(word for setting in settings for word in ("--set", setting)),
    ]
    return text_of(load(targets.load(name), file, settings), name, shlex.join(words))


def text_of(plan: Plan, name: str, command: str) -> str:
    """The artifact of a plan for the target `name`; its header says that `command` made it."""
    target = targets.load(name)
    values = {
        "plan": plan,
        "job": plan.job,
        "command": command,
        "not_used": {key: why for key, why in target.NOT_USED.items() if is_given(plan.job, key)},
    }
    return render_template(targets.template(name), {**values, **target.variables(plan)})


def is_given(job: Job, key: str) -> bool:
    """Whether a spec has a key such as "resources.memory" with a value."""
    section: BaseModel = job
    *above, last = key.split(".")
    for part in above:
        section = cast(BaseModel, getattr(section, part))
    return last in section.model_fields_set and getattr(section, last) is not None
