"""Records of a run, read back from RUN_DIR/metrics.jsonl."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train.errors import UserError

Record = dict[str, Any]


@dataclass
class RunRecords:
    """The records of one run.  If a resumed run repeated a step, only the step's last record counts.

    starts: one for each time the run was started.  end: the `end` record, None if the run has not reached its end.
    """

    name: str
    starts: list[Record] = field(default_factory=list)
    steps: dict[int, Record] = field(default_factory=dict)
    epochs: dict[int, Record] = field(default_factory=dict)
    end: Record | None = None

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.starts[-1].get("config", {})) if self.starts else {}

    @property
    def best_accuracy(self) -> float | None:
        return max((r["val_accuracy"] for r in self.epochs.values() if "val_accuracy" in r), default=None)

    @property
    def seconds(self) -> float:
        """Seconds of all steps together, without evaluation, saving and the time between two starts."""
        return sum(float(record.get("seconds_per_step", 0.0)) for record in self.steps.values())


def read_runs(folders: Sequence[Path]) -> list[RunRecords]:
    """Read the runs; each is named after its folder, or by the whole path if two folders have the same name.

    Raises UserError with every folder that holds no records.
    """
    names = [folder.resolve().name for folder in folders]
    labels = [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders, strict=True)]
    problems: list[str] = []
    runs = [_read(folder, label, problems) for folder, label in zip(folders, labels, strict=True)]
    if problems:
        raise UserError("\n".join(problems))
    return runs


def _read(folder: Path, name: str, problems: list[str]) -> RunRecords:
    file, run = folder / "metrics.jsonl", RunRecords(name)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        problems.append(f"cannot read {file}: {error.strerror}. Give the folder that was the --run-dir of a run")
        return run
    why_empty = "the run ended before --log-every steps, or has just begun"
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue  # the last line of a run that was killed while it wrote
        event = record.get("event")
        if event == "start":
            run.starts.append(record)
            run.end = None
        elif event == "step":
            run.steps[record["step"]] = record
        elif event == "epoch":
            run.epochs[record["epoch"]] = record
        elif event == "incident" and record["kind"] == "already_ended":
            why_empty = "the run had already ended when it was resumed. Give the --run-dir of the start that trained"
        elif event == "end":
            run.end = record
    if not run.steps:
        problems.append(f"{file} holds no step: {why_empty}")
    return run
