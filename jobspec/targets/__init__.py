"""The targets: one file each here, and one template with the same stem; the file's name is the target's name.

A target's module is a `Target`.  Its rules are `Rule`s at its top level, as in jobspec/spec/rules.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

# The command line asks for the names before it knows what is to be done; nothing heavy is imported for that.
if TYPE_CHECKING:
    from jobspec.environment import Variable
    from jobspec.plan import Plan, Rank

_JOBSPEC = Path(__file__).parents[1]
TEMPLATES = next(folder / "templates" for folder in (_JOBSPEC.parent, _JOBSPEC) if (folder / "templates").is_dir())
"""Beside jobspec in a checkout, inside of it where pip has installed it."""


class Target(Protocol):
    """What a file in this folder defines."""

    @property
    def __name__(self) -> str: ...

    NOT_USED: Mapping[str, str]
    """Keys of the spec without effect here (such as "resources.memory") and why; the artifact says so.

    Only keys whose absence leaves the job's result as it is.  What would change it is a rule that refuses.
    """

    def template_values(self, plan: Plan) -> dict[str, Any]:
        """What the template needs besides `plan`, `job`, `command` and `not_used`."""

    def environment(self, plan: Plan, rank: Rank) -> list[Variable]:
        """Every variable that the process at `rank` sees, and who sets it, in the order in which they are set."""


def node_name(target: Target, plan: Plan, node: int) -> str | None:
    """What node number `node` calls itself; None where only the running job knows.

    A target whose nodes have names of its own making (pods, services) has a function `node_name(plan, node)`.
    """
    name = getattr(target, "node_name", None)
    return None if name is None else cast(str, name(plan, node))


def remarks(target: Target) -> Mapping[str, str]:
    """What the value of a variable does not say, by its name; a target that has something to say has a `REMARKS`."""
    return cast("Mapping[str, str]", getattr(target, "REMARKS", {}))


def rendezvous_timeout_s(target: Target) -> int:
    """How long nodes wait for the last of them, where the spec says nothing.

    A target whose nodes may start far apart has its own `RENDEZVOUS_TIMEOUT_S`.
    """
    from jobspec.plan import RENDEZVOUS_TIMEOUT_S

    return cast(int, getattr(target, "RENDEZVOUS_TIMEOUT_S", RENDEZVOUS_TIMEOUT_S))


def sweeps(target: Target) -> str | None:
    """How a target runs all combinations of a sweep: "array" (one artifact), "objects" (one each), or None.

    A target that can has a `SWEEPS`.
    """
    return cast("str | None", getattr(target, "SWEEPS", None))


def names() -> list[str]:
    """All targets, sorted."""
    return sorted(file.stem for file in Path(__file__).parent.glob("*.py") if file.stem != "__init__")


def load(name: str) -> Target:
    """The target of a name from `names()`; nothing of the others is imported."""
    return cast(Target, importlib.import_module(f"{__name__}.{name}"))


@cache  # `explain` asks for each variable of each rank
def template(name: str) -> str:
    """File name of a target's template, such as torchrun.sh.j2: target, the artifact's own suffix, j2."""
    (file,) = TEMPLATES.glob(f"{name}.*.j2")
    return file.name


def artifact(name: str) -> str:
    """What a target's artifact is called."""
    if name == "compose":
        return "compose file"
    return "script" if ".sh." in template(name) else "manifest"
