"""The targets: one file each, with the target's name, and one template with the same stem."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

# The command line lists the names before it knows what it will do; nothing heavy is imported for that.
if TYPE_CHECKING:
    from jobspec.environment import Variable
    from jobspec.plan import Plan, Rank
    from jobspec.spec.job import Job
    from jobspec.spec.rules import Rule

_PACKAGE = Path(__file__).parents[1]
# Beside jobspec in a checkout, inside jobspec if pip installed it.
TEMPLATES = next(folder / "templates" for folder in (_PACKAGE.parent, _PACKAGE) if (folder / "templates").is_dir())


@dataclass(frozen=True)
class Target:
    """What a file in this folder says of its target, as TARGET.

    uses: keys of the spec (such as "resources.memory") that the artifact carries out, or that a rule rejects.  A spec
        that gives another key is rejected, unless the key is in `not_used` or in the section of another target.
    not_used: keys that cannot change the job's result here, and why; the artifact's head says so.
    rules: what its jobs must keep besides the rules of every job.
    template_values: what the template needs besides `plan`, `job` and `command`; `notes` are plan.notes by default.
    environment: every variable that the process at a rank sees, and who sets it, in the order in which they are set.
    rendezvous_timeout_s: how long nodes wait for the last one if the spec does not say.
    sweeps: how all combinations of a sweep run: "array" (one artifact), "objects" (one each), or None: only one runs.
    node_name: the name of a node by its number (a pod, a service); None if only the running job knows it.
    hides_the_node: True if the processes see only those files of their node that the spec mounts.
    near: what the scheduler is asked for where the spec has a topology: options or annotations with their values.
    reason: the command that shows why a job waits; nothing where no job does.
    doubts: what looks odd on this target alone, each with what to do.
    """

    name: str
    uses: Set[str]
    not_used: Mapping[str, str]
    rules: Sequence[Rule]
    template_values: Callable[[Plan], dict[str, Any]]
    environment: Callable[[Plan, Rank], list[Variable]]
    rendezvous_timeout_s: int
    sweeps: Literal["array", "objects"] | None = None
    node_name: Callable[[Plan, int], str | None] = lambda plan, node: None
    hides_the_node: Callable[[Job], bool] = lambda job: False
    near: Callable[[Job], Mapping[str, str]] = lambda job: {}
    reason: Callable[[Job], str] = lambda job: ""
    doubts: Callable[[Job], Iterable[str]] = lambda job: ()


def names() -> list[str]:
    return sorted(file.stem for file in Path(__file__).parent.glob("*.py") if file.stem != "__init__")


def load(name: str) -> Target:
    """Return the target of a name from `names()`; the other targets are not imported."""
    target: Target = importlib.import_module(f"{__name__}.{name}").TARGET
    return target


def template(name: str) -> str:
    """Return the file name of a target's template, such as torchrun.sh.j2: target, the artifact's own suffix, j2."""
    (file,) = TEMPLATES.glob(f"{name}.*.j2")
    return file.name


def ending(name: str) -> str:
    """Return how the file of an artifact is called behind the job's name and a dot, such as torchrun.sh."""
    return template(name).removesuffix(".j2")
