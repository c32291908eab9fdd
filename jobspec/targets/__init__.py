"""The targets: one file each, with the target's name, and one template with the same stem.

A target's module is a `Target`.  Its rules are `Rule`s at its top level, as in jobspec/spec/rules.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Set
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from jobspec import TEMPLATES

# The command line lists the names before it knows what it will do; nothing heavy is imported for that.
if TYPE_CHECKING:
    from jobspec.environment import Variable
    from jobspec.plan import Plan, Rank
    from jobspec.spec.job import Job


class Target(Protocol):
    """The interface of a file in this folder."""

    @property
    def __name__(self) -> str: ...

    USES: Set[str]
    """Keys of the spec (such as "resources.memory") that the artifact carries out, or that a rule rejects.

    A spec that gives another key is rejected, unless the key is in NOT_USED or in the section of another target.
    """
    NOT_USED: Mapping[str, str]
    """Keys that cannot change the job's result here, and why; the artifact's head says so."""

    def template_values(self, plan: Plan) -> dict[str, Any]:
        """Return what the template needs besides `plan`, `job` and `command`; `notes` are plan.notes by default."""

    def environment(self, plan: Plan, rank: Rank) -> list[Variable]:
        """List every variable that the process at `rank` sees, and who sets it, in the order in which they are set."""


def node_name(target: Target, plan: Plan, node: int) -> str | None:
    """Return the name of node number `node`; None if only the running job knows it.

    A target that makes the names of its nodes (pods, services) has a function `node_name(plan, node)`.
    """
    name = getattr(target, "node_name", None)
    return None if name is None else cast(str, name(plan, node))


def remarks(target: Target) -> Mapping[str, str]:
    """Return notes on variables whose values do not say enough, by name; a target with such notes has a `REMARKS`."""
    return cast("Mapping[str, str]", getattr(target, "REMARKS", {}))


def rendezvous_timeout_s(target: Target) -> int:
    """Return how long nodes wait for the last one if the spec does not say.

    A target whose nodes may start far apart has its own `RENDEZVOUS_TIMEOUT_S`.
    """
    from jobspec.plan import RENDEZVOUS_TIMEOUT_S

    return cast(int, getattr(target, "RENDEZVOUS_TIMEOUT_S", RENDEZVOUS_TIMEOUT_S))


def sweeps(target: Target) -> str | None:
    """Return how a target runs all combinations of a sweep: "array" (one artifact), "objects" (one each), or None.

    A target that can run them all has a `SWEEPS`.
    """
    return cast("str | None", getattr(target, "SWEEPS", None))


def hides_the_node(target: Target, job: Job) -> bool:
    """Return True if the processes see only those files of their node that the spec mounts.

    Where the job decides, the target has a function `hides_the_node(job)`.  Elsewhere all targets with images do.
    """
    own = getattr(target, "hides_the_node", None)
    return "image" in target.USES if own is None else cast(bool, own(job))


def names() -> list[str]:
    """List all targets, sorted."""
    return sorted(file.stem for file in Path(__file__).parent.glob("*.py") if file.stem != "__init__")


def load(name: str) -> Target:
    """Return the target of a name from `names()`; the other targets are not imported."""
    return cast(Target, importlib.import_module(f"{__name__}.{name}"))


@cache  # `explain` asks for each variable of each rank
def template(name: str) -> str:
    """Return the file name of a target's template, such as torchrun.sh.j2: target, the artifact's own suffix, j2."""
    (file,) = TEMPLATES.glob(f"{name}.*.j2")
    return file.name


def artifact(name: str) -> str:
    """Return the word for a target's artifact."""
    if name == "compose":
        return "compose file"
    return "script" if ".sh." in template(name) else "manifest"
