"""What each slice of exact mode computed (--log-slices), and the first slice in which two runs differ."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from train.errors import naming_failures

# (epoch, step of the epoch, how many steps this batch had before, slice) → loss, and the hash of each gradient.
Slices = dict[tuple[int, ...], tuple[str, dict[str, str]]]


def log_slice(run_dir: str, rank: int, at: tuple[int, ...], loss: float, hashes: Mapping[str, str]) -> None:
    """Append a line to RUN_DIR/slices-RANK.jsonl.  Raises UserError if it cannot be written."""
    path = Path(run_dir, f"slices-{rank}.jsonl")
    with naming_failures(f"--log-slices: cannot write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([at, repr(loss), hashes]) + "\n")


def first_difference(one: Path, two: Path) -> tuple[int, str | None]:
    """Return how many slices two runs have logged, and where they first differ in a sentence; None if nowhere."""
    first, second = _read(one), _read(two)
    everywhere = sorted(first.keys() | second.keys())
    for at in everywhere:
        epoch, step, nth, number = at
        place = f"step {step + 1} of epoch {epoch}{f', update {nth + 1} of the batch' if nth else ''}, slice {number}"
        if at not in first or at not in second:
            return len(everywhere), f"slices first differ at {place}: only one of the runs has logged it"
        (loss, gradients), (other, others) = first[at], second[at]
        if loss != other:
            return len(everywhere), f"slices first differ at {place}: the sum of its losses is {loss} and {other}"
        if apart := [name for name in {**gradients, **others} if gradients.get(name) != others.get(name)]:
            # The backward comes to the last layers first.
            more = f" and {len(apart) - 1} more" if len(apart) > 1 else ""
            return len(everywhere), f"slices first differ at {place}: the gradients of {apart[-1]}{more}"
    return len(everywhere), None


def _read(folder: Path) -> Slices:
    slices: Slices = {}
    for file in folder.glob("slices-*.jsonl"):
        for line in file.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):  # a run that was killed may have cut a line off
                at, loss, gradients = json.loads(line)
                slices[tuple(at)] = loss, gradients
    return slices
