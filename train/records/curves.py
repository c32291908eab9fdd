"""The curves of some runs as PNG, one picture for each quantity, so that each stays readable on a narrow screen."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from train.records.observer import EpochRecord, StepRecord, own_names
from train.records.runs import RunRecords

Points = list[tuple[float, float]]

# More points than _NOISY hide the trend; the means of about _WINDOWS windows then show it.
_NOISY = 200
_WINDOWS = 50


@dataclass(frozen=True)
class Curve:
    """One picture of a value in the records of all steps, or of all epochs; dashed: of a second line for each run.

    noisy: if the points are many, they are drawn faintly, under their running mean.
    """

    file: str
    title: str
    unit: str
    name: str
    of: str = "steps"
    factor: float = 1.0
    dashed: str | None = None
    noisy: bool = False

    def points(self, run: RunRecords, name: str | None) -> Points:
        """Return (step, value) in the order of the steps; empty if the run has none."""
        records: dict[int, dict[str, Any]] = getattr(run, self.of)
        found = [records[number] for number in sorted(records) if name in records[number]]
        return [(record["step"], self.factor * record[name or ""]) for record in found]


_EPOCH_LOSS = "mean loss of an epoch: validation, and training (dashed)"
CURVES = [
    Curve("loss.png", "training loss, each step", "loss", "loss", noisy=True),
    Curve("epoch-loss.png", _EPOCH_LOSS, "loss", "val_loss", "epochs", dashed="train_loss"),
    Curve("accuracy.png", "validation accuracy", "accuracy [%]", "val_accuracy", "epochs", 100.0),
    Curve("lr.png", "learning rate", "learning rate", "lr"),
    Curve("grad-norm.png", "norm of the gradient", "norm", "grad_norm", noisy=True),
    Curve("speed.png", "speed", "samples per second", "samples_per_second"),
    Curve("input.png", "time spent waiting for input", "share of a step", "input_share"),
    Curve("communication.png", "time spent waiting for other ranks", "share of a step", "communication_share"),
]
# Other names in the records come from run.record().
_KNOWN = own_names(StepRecord) | own_names(EpochRecord) | {"val_loss", "val_accuracy"}


def _own_metrics(runs: Sequence[RunRecords]) -> list[Curve]:
    """Return a curve for each name that run.record() added to steps or epochs."""
    kinds = product(runs, ("epochs", "steps"))
    of = {
        name: kind for run, kind in kinds for record in getattr(run, kind).values() for name in record.keys() - _KNOWN
    }
    curves, stems = list[Curve](), Counter(Path(curve.file).stem for curve in CURVES)
    for name in sorted(of):
        stem = re.sub(r"\W", "-", name)
        stems[stem] += 1
        file = f"{stem}.png" if stems[stem] == 1 else f"{stem}-{stems[stem]}.png"
        curves.append(Curve(file, f"{name}, recorded by the program", name, name, of[name], noisy=of[name] == "steps"))
    return curves


def draw(runs: Sequence[RunRecords], folder: Path) -> list[Path]:
    """Draw what the runs have; return the files."""
    drawn = [_drawn(curve, runs, folder) for curve in [*CURVES, *_own_metrics(runs)]]
    return [file for file in drawn if file is not None]


def _drawn(curve: Curve, runs: Sequence[RunRecords], folder: Path) -> Path | None:
    from matplotlib.figure import Figure  # without pyplot: no window, no state

    if not any(curve.points(run, curve.name) for run in runs):
        return None
    figure = Figure(figsize=(5.4, 3.8), layout="constrained")
    axes = figure.subplots()
    for number, run in enumerate(runs):
        look = {"color": f"C{number % 10}", "linewidth": 2.5 if number == 0 else 1.5}
        points = curve.points(run, curve.name)
        if curve.noisy and len(points) > _NOISY:
            axes.plot(*zip(*points, strict=True), color=look["color"], alpha=0.2, linewidth=0.8)
            points = _running_means(points, len(points) // _WINDOWS)
        _line(axes, points, label=run.name, **look)
        _line(axes, curve.points(run, curve.dashed), linestyle="--", **look)
    axes.set(title=curve.title, xlabel="step", ylabel=curve.unit)
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(folder / curve.file, dpi=140)
    return folder / curve.file


def _line(axes: Any, points: Points, **look: Any) -> None:
    if points:
        marker = "o" if len(points) <= 20 else None  # a single point has no line
        axes.plot(*zip(*points, strict=True), marker=marker, markersize=4, **look)


def _running_means(points: Points, width: int) -> Points:
    """Return the means of each `width` neighbouring points, at the middle of them."""
    windows = [points[start : start + width] for start in range(0, len(points), width)]
    return [tuple(sum(numbers) / len(window) for numbers in zip(*window, strict=True)) for window in windows]
