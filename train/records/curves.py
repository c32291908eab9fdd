"""The curves of some runs as PNG, one picture for each quantity, so that each stays readable on a narrow screen."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train.records.observer import EpochRecord, StepRecord
from train.records.runs import RunRecords

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = list[tuple[float, float]]

# More points than _NOISY hide the trend; the means of about _WINDOWS windows then show it.
_NOISY = 200
_WINDOWS = 50


@dataclass(frozen=True)
class Curve:
    """One picture.

    points: (step, value) of a run; empty if it has none.  dashed: a second line for each run.
    noisy: if the points are many, they are drawn faintly, under their running mean.
    log: whether the axis of the values is always logarithmic.
    """

    file: str
    title: str
    unit: str
    points: Callable[[RunRecords], Points]
    dashed: Callable[[RunRecords], Points] | None = None
    noisy: bool = False
    log: bool = False


def _of_steps(key: str) -> Callable[[RunRecords], Points]:
    def points(run: RunRecords) -> Points:
        return [(step, run.steps[step][key]) for step in sorted(run.steps) if key in run.steps[step]]

    return points


def _of_epochs(key: str, factor: float = 1.0) -> Callable[[RunRecords], Points]:
    def points(run: RunRecords) -> Points:
        records = [run.epochs[epoch] for epoch in sorted(run.epochs)]
        return [(record["step"], factor * record[key]) for record in records if key in record]

    return points


CURVES = [
    Curve("loss.png", "training loss, each step", "loss", _of_steps("loss"), noisy=True),
    Curve(
        "epoch-loss.png",
        "mean loss of an epoch: validation, and training (dashed)",
        "loss",
        _of_epochs("val_loss"),
        _of_epochs("train_loss"),
    ),
    Curve("accuracy.png", "validation accuracy", "accuracy [%]", _of_epochs("val_accuracy", 100.0)),
    Curve("lr.png", "learning rate", "learning rate", _of_steps("lr")),
    Curve("grad-norm.png", "norm of the gradient", "norm", _of_steps("grad_norm"), noisy=True),
    Curve("speed.png", "speed", "samples per second", _of_steps("samples_per_second")),
    Curve("input.png", "time spent waiting for input", "share of a step", _of_steps("input_share")),
    Curve(
        "communication.png", "time spent waiting for other ranks", "share of a step", _of_steps("communication_share")
    ),
]


# Other names in the records come from run.record().
_KNOWN = {field.name for record in (StepRecord, EpochRecord) for field in fields(record)}
_KNOWN |= {"event", "val_loss", "val_accuracy"}


def _own_metrics(runs: Sequence[RunRecords]) -> list[Curve]:
    """Return a curve for each name that run.record() added to steps or epochs."""
    curves = {}
    for run in runs:
        for records, points in ((run.epochs, _of_epochs), (run.steps, _of_steps)):
            for name in {name for record in records.values() for name in record} - _KNOWN:
                file = re.sub(r"\W", "-", name) + ".png"
                curves[name] = Curve(file, f"{name}, recorded by the program", name, points(name), noisy=True)
    return [curves[name] for name in sorted(curves)]


def _difference(first: RunRecords, second: RunRecords) -> Curve:
    """Return the difference of the losses of two runs; it is drawn for `first` alone."""

    def points(run: RunRecords) -> Points:
        common = sorted(first.steps.keys() & second.steps.keys()) if run is first else []
        pairs = [(step, first.steps[step]["loss"], second.steps[step]["loss"]) for step in common]
        return [(step, abs(one - two) / max(abs(one), abs(two), 1e-300)) for step, one, two in pairs if one != two]

    title = f"training loss: {first.name} and {second.name} apart"
    return Curve("difference.png", title, "share of the larger loss", points, log=True)


def draw(
    runs: Sequence[RunRecords], folder: Path, compared: tuple[RunRecords, RunRecords] | None = None, log: bool = False
) -> list[Path]:
    """Draw each quantity that at least one run has, and the difference of the two in `compared`; return the files.

    log: logarithmic axes for losses.
    """
    from matplotlib.figure import Figure  # without pyplot: no window, no state

    drawn = []
    for curve in [*CURVES, *_own_metrics(runs), *([] if compared is None else [_difference(*compared)])]:
        if not any(curve.points(run) for run in runs):
            continue
        figure = Figure(figsize=(5.4, 3.8), layout="constrained")
        axes = figure.subplots()
        for number, run in enumerate(runs):
            look = {"color": f"C{number % 10}", "linewidth": 2.5 if number == 0 else 1.5}
            points = curve.points(run)
            if curve.noisy and len(points) > _NOISY:
                axes.plot(*zip(*points, strict=True), color=look["color"], alpha=0.2, linewidth=0.8)
                points = _running_means(points)
            _line(axes, points, label=run.name, **look)
            if curve.dashed is not None:
                _line(axes, curve.dashed(run), linestyle="--", **look)
        axes.set(title=curve.title, xlabel="step", ylabel=curve.unit)
        if curve.log or (log and curve.unit == "loss"):
            axes.set_yscale("log")
        axes.grid(True, alpha=0.3)
        axes.legend(fontsize="small")
        file = folder / curve.file
        figure.savefig(file, dpi=140)
        drawn.append(file)
    return drawn


def _line(axes: Axes, points: Points, **look: Any) -> None:
    if points:
        marker = "o" if len(points) <= 20 else None  # a single point has no line
        axes.plot(*zip(*points, strict=True), marker=marker, markersize=4, **look)


def _running_means(points: Points) -> Points:
    """Return the means of neighbouring points, each at the middle of its points."""
    width = max(2, len(points) // _WINDOWS)
    windows = [points[start : start + width] for start in range(0, len(points), width)]
    return [tuple(sum(numbers) / len(window) for numbers in zip(*window, strict=True)) for window in windows]
