"""Train in two published settings, through `python -m train` on real data, and compare with the published figures."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import jobs
from benchmarks.gpu.outcome import Failed, Outcome, Skipped, require_torchvision

# PyTorch's own MNIST example, as in jobs/mnist.yaml.
MNIST = (
    "--model=mnist_cnn",
    "--dataset=mnist",
    "--batch-size=64",
    "--optimizer=adadelta",
    "--lr=1.0",
    "--scheduler=step",
    "--lr-gamma=0.7",
    "--epochs=14",
)
ACCURACY = 0.992
MNIST_SECONDS = 143.0  # published: 2 min 23 s
# A published table of ten epochs on two GPUs, as in jobs/fashion-mnist.yaml.
FASHION_MNIST = (
    "--model=resnet18",
    "--dataset=fashion_mnist",
    "--batch-size=32",
    "--optimizer=sgd",
    "--lr=1e-3",
    "--epochs=10",
)
TRAIN_LOSS = 0.188
TOLERANCE = 0.05
_FILES = [f"{part}-ubyte" for split in ("train", "t10k") for part in (f"{split}-images-idx3", f"{split}-labels-idx1")]
# For the training; the checks have half a minute more.
MNIST_LIMIT_S, FASHION_MNIST_LIMIT_S = 270.0, 520.0


def mnist(device: str, *more: str) -> dict[str, Any]:
    record: dict[str, Any] = {"published": {"accuracy": ACCURACY, "seconds": MNIST_SECONDS}}
    record |= trained(device, "MNIST", [*MNIST, *more], MNIST_LIMIT_S)
    accuracy = record["val_accuracy"][-1]
    if not accuracy >= ACCURACY:
        raise Failed(f"the accuracy at the end is {accuracy:.2%}, below {ACCURACY:.1%}", record)
    return record


def fashion_mnist(device: str, *more: str) -> dict[str, Any]:
    record: dict[str, Any] = {"published": {"train_loss": TRAIN_LOSS}, "tolerance": TOLERANCE}
    record |= trained(device, "FashionMNIST", [*FASHION_MNIST, *more], FASHION_MNIST_LIMIT_S)
    difference = record["train_loss"][-1] / TRAIN_LOSS - 1
    record["difference"] = difference
    if not abs(difference) <= TOLERANCE:
        raise Failed(f"the train loss at the end differs from {TRAIN_LOSS} by {difference:+.1%}", record)
    return record


def trained(device: str, dataset: str, flags: Sequence[str], limit_s: float) -> dict[str, Any]:
    """Train once; return the figures of each epoch and the seconds of the whole command.

    Raises Skipped without the data, Failed after an error, OutOfTime after `limit_s`; the last two with the figures.
    """
    root = data_root(dataset)
    flags = [*flags, f"--data-root={root}"]
    with tempfile.TemporaryDirectory() as folder, jobs.started(device, Path(folder), flags, base=()) as job:
        started = time.monotonic()
        try:
            job.finish_in_time(limit_s)
        except Outcome as outcome:
            outcome.record = _figures(job)
            raise
        return {"command_seconds": time.monotonic() - started, **_figures(job)}


def data_root(dataset: str) -> Path:
    """Return the folder DATA_ROOT.  Raises Skipped without the files of `dataset` in it, or what reads them."""
    require_torchvision()
    root = os.environ.get("DATA_ROOT")
    if not root:
        raise Skipped(f"DATA_ROOT is not set: set it to the folder that holds {dataset}/raw")
    folder = Path(root).resolve() / dataset / "raw"
    if missing := [name for name in _FILES if not (folder / name).is_file()]:
        raise Skipped(f"DATA_ROOT lacks {', '.join(missing)} in {dataset}/raw")
    return folder.parent.parent


def _figures(job: jobs.Job) -> dict[str, Any]:
    epochs = job.records("epoch")
    names = ("train_loss", "val_loss", "val_accuracy", "train_seconds")
    return {name: [epoch[name] for epoch in epochs] for name in names}
