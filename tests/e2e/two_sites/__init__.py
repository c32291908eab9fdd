"""One job and its two sites: the tests of Slurm and of Kubernetes compare its weights with those of a run alone."""

from __future__ import annotations

from pathlib import Path

from tests.cli import records
from tests.idx import write_small_mnist
from tests.ranks import train_on_ranks

FOLDER = Path(__file__).parent
JOB = FOLDER / "job.yaml"
_FLAGS = ["--model=mlp", "--dataset=mnist", "--epochs=9", "--max-steps=40", "--batch-size=60", "--lr=0.1"]


def write_data(folder: Path) -> None:
    """Write the job's data set; the same images each time."""
    write_small_mnist(folder, 400, 100)


def weights_alone(folder: Path) -> str:
    """Return the weights_sha256 of the same training by two processes of this machine."""
    write_data(folder / "data")
    train_on_ranks(2, *_FLAGS, f"--data-root={folder / 'data'}", f"--run-dir={folder / 'run'}", "--device=cpu")
    return str(records(folder / "run", "end")[0]["weights_sha256"])
