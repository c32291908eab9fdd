"""What each slice of exact mode computed (--log-slices), and the first slice in which two runs differ."""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from train.config import setting
from train.errors import naming_failures

# (epoch, step of the epoch, how many steps this batch had before, slice) → loss, and the hash of each gradient.
Slices = dict[tuple[int, ...], tuple[str, dict[str, str]]]


def log_slice(run_dir: str, rank: int, at: tuple[int, ...], loss: float, hashes: Mapping[str, str]) -> None:
    """Append a line to RUN_DIR/slices-RANK.jsonl.  Raises UserError if it cannot be written."""
    path = Path(run_dir, f"slices-{rank}.jsonl")
    with naming_failures(f"{setting('log_slices')}: cannot write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([time.time(), at, repr(loss), hashes]) + "\n")


def read_slices(run_dir: Path) -> Slices:
    """Return what the ranks have logged; of a slice that was computed again, the last time counts."""
    rows: list[Any] = []
    for file in run_dir.glob("slices-*.jsonl"):
        for line in file.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):  # a run that was killed may have cut a line off
                rows.append(json.loads(line))
    return {tuple(at): (loss, hashes) for _, at, loss, hashes in sorted(rows, key=lambda row: row[0])}


def first_difference(first: Slices, second: Slices) -> str:
    """Return in a sentence where two runs first differ, or that they do not."""
    apart = [at for at in sorted({**first, **second}) if first.get(at) != second.get(at)]
    if not apart:
        return f"all {len(first)} slices have the same losses and gradients"
    epoch, step, nth, number = at = apart[0]
    update = f", update {nth + 1} of the batch" if nth else ""
    place = f"slices first differ at step {step + 1} of epoch {epoch}{update}, slice {number}"
    if at not in first or at not in second:
        return f"{place}: only one of the runs has logged it"
    (loss, hashes), (other, others) = first[at], second[at]
    if loss != other:
        return f"{place}: the sum of its losses is {loss} and {other}"
    # The backward comes to the last layers first.
    *more, name = [name for name in {**hashes, **others} if hashes.get(name) != others.get(name)]
    return f"{place}: the gradients of {name}" + f" and {len(more)} more" * bool(more)
