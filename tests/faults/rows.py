"""The rows of rows.yaml: what happens where, what is said, and how the job ends."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import TypeAdapter


@dataclass(frozen=True)
class Fault:
    """`what` happens once, when `rank` reaches `place` in `step` of its first start.

    what: names of signals, sent to `to` (a rank, agent or node); nan, memory or disk: that of the rank; ask: the test
        does what the row says; ask SIGKILL: before the signal.
    place: import, rendezvous, unresolved, step, forward, bucket, or save: before its file event number `event`.
    """

    what: str
    to: str = "1"
    rank: int = 1
    step: int = 7
    place: str = "forward"
    event: int = 1


@dataclass(frozen=True)
class Row:
    """A fault and what must follow.

    ends: `goes on` in the same processes; `restarts` under the same torchrun; `resumes` when it is started again, then
        on three processes; `refused`.
    says: patterns of the output, TO for the fault's.
    lost: the most steps that are trained again.
    where: one machine, two nodes (each runs the rendered script), or ranks: two nodes without torchrun.
    outside: what the test does when it is asked: with nodes and cables, or a command in the job's folder.
    nine: the job has run for 9 steps before.  before, mend: commands in its folder before the two starts.
    """

    ends: Literal["goes on", "restarts", "resumes", "refused"]
    fault: Fault | None = None
    says: tuple[str, ...] = ()
    lost: int = 4
    where: Literal["machine", "nodes", "ranks"] = "machine"
    outside: str = ""
    nine: bool = False
    before: str = "true"
    mend: str = "true"
    train: dict[str, Any] = field(default_factory=dict)
    quick: bool = False


ROWS = TypeAdapter(dict[str, Row]).validate_python(yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()))
