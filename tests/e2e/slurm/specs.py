"""Job specs of the tests, and the same training without Slurm to compare with."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from jobspec.artifact import render
from tests.cli import ROOT, environment, free_port, records
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


def run_with_torchrun(spec: Path, nodes: int, run_dir: Path) -> None:
    """Run the same spec with the script for torchrun, once for each node, all on this machine."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    artifact = render("torchrun", str(spec), [f"train.run_dir={run_dir}", f"rendezvous.port={free_port()}"])
    started = [
        subprocess.Popen(
            ["bash", "-c", artifact],
            cwd=ROOT,
            env=environment(NODE_RANK=str(node), MASTER_ADDR="127.0.0.1", PATH=path),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in range(nodes)
    ]
    for process in started:
        said, _ = process.communicate()
        assert process.returncode == 0, said


def run_on_ranks(world_size: int, train: dict[str, Any], run_dir: Path) -> dict[str, Any]:
    """The same training by as many processes of this machine, without a launcher."""
    train_on_ranks(world_size, *to_argv({**train, "device": "cpu", "run_dir": str(run_dir)}))
    return end_record(run_dir)
