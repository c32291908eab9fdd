"""Job specs of the tests, and the same training without Slurm to compare with."""

from pathlib import Path
from typing import Any

from jobspec.artifact import render
from tests.cli import records
from tests.e2e.slurm.cluster import Cluster
from tests.ranks import train_on_ranks
from train.config import to_argv


def script(cluster: Cluster, spec: str, *settings: str) -> str:
    """The batch script that render-job makes of a spec."""
    file = cluster.folder / "job.yaml"
    file.write_text(spec)
    return render("slurm", str(file), settings)


def end_record(run_dir: Path) -> dict[str, Any]:
    """The last record of a run, which has the hash of its weights, without the time of day."""
    (end,) = records(run_dir, "end")
    return {key: value for key, value in end.items() if key != "time"}


def losses(run_dir: Path) -> list[float]:
    """Of each step, and of the last evaluation."""
    return [*(step["loss"] for step in records(run_dir, "step")), records(run_dir, "epoch")[-1]["val_loss"]]


def run_on_ranks(world_size: int, train: dict[str, Any], run_dir: Path) -> dict[str, Any]:
    """The same training by as many processes of this machine, without a launcher."""
    train_on_ranks(world_size, *to_argv({**train, "device": "cpu", "run_dir": str(run_dir)}))
    return end_record(run_dir)
