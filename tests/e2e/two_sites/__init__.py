"""One job with two sites, and a sweep: the tests of Slurm and of Kubernetes ask the same of both."""

from pathlib import Path

import yaml

from tests.cli import records
from tests.idx import write_small_mnist
from tests.ranks import train_on_ranks
from train.config import to_argv

FOLDER = Path(__file__).parent
JOB = FOLDER / "job.yaml"

_RATES, _SEEDS = (0.3, 0.1, 0.03), (0, 1)
SWEEP = {"train.lr": list(_RATES), "train.seed": list(_SEEDS)}


def write_data(folder: Path) -> None:
    """Write the job's data set; the same images each time."""
    write_small_mnist(folder, 400, 100)


def weights_alone(folder: Path) -> str:
    """Return the weights_sha256 of the same training by two processes of this machine."""
    write_data(folder / "data")
    folders = {"data_root": folder / "data", "run_dir": folder / "run", "checkpoint_dir": folder / "saved"}
    train_on_ranks(2, *to_argv({**yaml.safe_load(JOB.read_text())["train"], **folders, "device": "cpu"}))
    return str(records(folder / "run", "end")[0]["weights_sha256"])


def check_sweep(runs: Path) -> None:
    """Assert that each run of SWEEP has a folder, settings and weights of its own."""
    settings = [(rate, seed) for rate in _RATES for seed in _SEEDS]
    configs = [records(runs / str(number), "start")[0]["config"] for number in range(len(settings))]
    assert [(config["lr"], config["seed"]) for config in configs] == settings
    ends = [records(runs / str(number), "end")[0]["weights_sha256"] for number in range(len(settings))]
    assert len(set(ends)) == len(ends)
