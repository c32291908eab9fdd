"""Records of runs, read back from RUN_DIR/metrics.jsonl, and the differences between two runs in words."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train.errors import UserError
from train.records.slices import Slices, first_difference, read_slices

Record = dict[str, Any]

# Settings that change where records go and how often, not what is computed.
_WITHOUT_EFFECT = {"run_dir", "checkpoint_dir", "checkpoint_every", "resume", "log_every"}
_WITHOUT_EFFECT |= {"tensorboard", "profile", "log_slices"}


@dataclass
class RunRecords:
    """The records of one run.  Where a start repeats steps, or begins anew, only what it records counts from there on.

    start: the last one that has recorded a step.  end: the `end` record, None if the run has not reached its end.
    """

    name: str
    start: Record = field(default_factory=dict)
    steps: dict[int, Record] = field(default_factory=dict)
    epochs: dict[int, Record] = field(default_factory=dict)
    slices: Slices = field(default_factory=dict)
    end: Record | None = None

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.start.get("config", {}))

    @property
    def best_accuracy(self) -> float | None:
        return max((r["val_accuracy"] for r in self.epochs.values() if "val_accuracy" in r), default=None)

    @property
    def seconds(self) -> float:
        """Seconds of all steps together, without evaluation, saving and the time between two starts."""
        return sum(float(record.get("seconds_per_step", 0.0)) for record in self.steps.values())


def read_runs(folders: Sequence[Path]) -> list[RunRecords]:
    """Read the runs; each is named after its folder, or by the whole path if two folders have the same name."""
    names = [folder.resolve().name for folder in folders]
    labels = [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders, strict=True)]
    problems: list[str] = []
    runs = [_read(folder, label, problems) for folder, label in zip(folders, labels, strict=True)]
    if problems:
        raise UserError("\n".join(problems))
    return runs


def _read(folder: Path, name: str, problems: list[str]) -> RunRecords:
    file, run = folder / "metrics.jsonl", RunRecords(name, slices=read_slices(folder))
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        problems.append(f"cannot read {file}: {error.strerror}. Give the folder that was the --run-dir of a run")
        return run
    why_empty = "the run ended before --log-every steps, or has just begun"
    start: Record | None = None  # until its first step: one that only evaluates changes nothing
    for line in lines:
        try:
            record = json.loads(line)
            event = record.get("event")
        except (ValueError, AttributeError):
            continue  # the last line of a run that was killed while it wrote, or another program's file
        if event == "start":
            start = record
        elif event == "step":
            if start is not None:  # which continues from this step
                run.start, run.end = start, None
                run.steps = {step: old for step, old in run.steps.items() if step < record["step"]}
                run.epochs = {epoch: old for epoch, old in run.epochs.items() if old["step"] < record["step"]}
                start = None
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


def difference(first: RunRecords, second: RunRecords) -> str:
    """Return what differs between two runs, one sentence per line."""
    differing = [f"{key}: {one} and {two}" for key, (one, two) in differing_settings(first, second).items()]
    settings = differing or ["settings, versions and number of processes are the same"]
    slices = [first_difference(first.slices, second.slices)] if first.slices or second.slices else []
    lines = [*settings, *_losses(first, second), *slices, *_ends(first, second)]
    return "\n".join([f"{first.name} and {second.name}:", *lines])


def differing_settings(first: RunRecords, second: RunRecords) -> dict[str, tuple[Any, Any]]:
    """Return the differing settings that affect what is computed, each with both values."""
    one, two = (_facts(run) for run in (first, second))
    return {key: (one.get(key), two.get(key)) for key in sorted({*one, *two}) if one.get(key) != two.get(key)}


def _facts(run: RunRecords) -> dict[str, Any]:
    facts = {key: value for key, value in run.config.items() if key not in _WITHOUT_EFFECT}
    facts["number of processes"] = run.start.get("world", {}).get("world_size")
    facts |= {f"version of {name}": text for name, text in run.start.get("versions", {}).items()}
    facts["kind of device"] = run.start.get("device")
    return facts


def _losses(first: RunRecords, second: RunRecords) -> list[str]:
    pairs = [(step, first.steps[step], second.steps[step]) for step in sorted(first.steps & second.steps.keys())]
    if not pairs:
        return ["no step was recorded in both"]
    lines = []
    rates = [(step, one["lr"], two["lr"]) for step, one, two in pairs if one["lr"] != two["lr"]]
    if rates:
        step, one, two = rates[0]
        lines.append(f"learning rates first differ at step {step}: {one:g} and {two:g}")
    apart = [(step, one["loss"], two["loss"]) for step, one, two in pairs if one["loss"] != two["loss"]]
    if not apart:
        return [*lines, f"all {len(pairs)} losses recorded in both are the same numbers"]
    step, one, two = apart[0]
    place = f"step {step} (epoch {first.steps[step]['epoch']})"
    before = f"losses are the same numbers up to step {step - 1} and" if step > pairs[0][0] else "losses"
    lines.append(
        f"{before} first differ at {place}: {one:.6g} and {two:.6g}; the difference is "
        f"{abs(one - two) / max(abs(one), abs(two)):.2g} of the larger one"
    )
    return lines


def _ends(first: RunRecords, second: RunRecords) -> list[str]:
    lines = []
    if max(first.steps) != max(second.steps):
        lines.append(f"the last steps are {max(first.steps)} and {max(second.steps)}")
    if first.best_accuracy is not None and second.best_accuracy is not None:
        lines.append(f"best accuracies: {first.best_accuracy:.2%} and {second.best_accuracy:.2%}")
    if first.end is not None and second.end is not None:
        same = first.end["weights_sha256"] == second.end["weights_sha256"]
        lines.append("the final weights are " + ("identical" if same else "different"))
    return lines
