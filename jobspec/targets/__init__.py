"""The targets: one file each, with the target's name, and one template with the same stem.

A target's module is a `Target`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

# The command line lists the names before it knows what it will do; nothing heavy is imported for that.
if TYPE_CHECKING:
    from jobspec.environment import Variable
    from jobspec.plan import Plan, Rank
    from jobspec.spec.job import Job
    from jobspec.spec.rules import Rule

_PACKAGE = Path(__file__).parents[1]
# Beside jobspec in a checkout, inside jobspec if pip installed it.
TEMPLATES = next(folder / "templates" for folder in (_PACKAGE.parent, _PACKAGE) if (folder / "templates").is_dir())


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

    RULES: Sequence[Rule]
    """What its jobs must keep besides the rules of every job."""

    def template_values(self, plan: Plan) -> dict[str, Any]:
        """Return what the template needs besides `plan`, `job` and `command`; `notes` are plan.notes by default."""

    def environment(self, plan: Plan, rank: Rank) -> list[Variable]:
        """List every variable that the process at `rank` sees, and who sets it, in the order in which they are set."""

    # What follows has a default, in `load`; pods have their own.
    SWEEPS: str | None
    """How all combinations of a sweep run: "array" (one artifact), "objects" (one each), or None: only one runs."""
    REMARKS: Mapping[str, str]
    """Notes on variables whose values do not say enough, by name."""
    RENDEZVOUS_TIMEOUT_S: int
    """How long nodes wait for the last one if the spec does not say."""

    def node_name(self, plan: Plan, node: int) -> str | None:
        """Return the name of node number `node` (a pod, a service); None if only the running job knows it."""

    def hides_the_node(self, job: Job) -> bool:
        """Return True if the processes see only those files of their node that the spec mounts."""


def names() -> list[str]:
    return sorted(file.stem for file in Path(__file__).parent.glob("*.py") if file.stem != "__init__")


def name_of(target: Target) -> str:
    return target.__name__.rpartition(".")[2]


def load(name: str) -> Target:
    """Return the target of a name from `names()`; the other targets are not imported."""
    from jobspec.plan import OF_PODS_S, RENDEZVOUS_TIMEOUT_S

    module = importlib.import_module(f"{__name__}.{name}")
    has_pods = "kubernetes.namespace" in module.USES
    defaults: dict[str, Any] = {
        "SWEEPS": "objects" if has_pods else None,
        "REMARKS": {},
        "RENDEZVOUS_TIMEOUT_S": OF_PODS_S if has_pods else RENDEZVOUS_TIMEOUT_S,
        "node_name": lambda plan, node: None,
        "hides_the_node": lambda job: "image" in module.USES,
    }
    for attribute, default in defaults.items():
        vars(module).setdefault(attribute, default)
    return cast(Target, module)


def template(name: str) -> str:
    """Return the file name of a target's template, such as torchrun.sh.j2: target, the artifact's own suffix, j2."""
    (file,) = TEMPLATES.glob(f"{name}.*.j2")
    return file.name


def ending(name: str) -> str:
    """Return how the file of an artifact is called behind the job's name and a dot, such as torchrun.sh."""
    return template(name).removesuffix(".j2")
