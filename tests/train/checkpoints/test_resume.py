"""A run that was stopped and started again ends like one that was not; tests/faults has kills and damage."""

from pathlib import Path

import pytest

from tests.cli import records
from tests.idx import write_small_mnist
from tests.ranks import train_on_ranks
from tests.train.devices import needs_fsdp_on_cpus

# Dropout and momentum: both would show a random state or an optimizer that was not restored.
_SETTINGS = [
    "--model=mnist_cnn",
    "--dataset=mnist",
    "--optimizer=sgd",
    "--momentum=0.9",
    "--lr=0.01",
    "--scheduler=step",
    "--batch-size=50",
    "--epochs=3",
    "--log-every=1",
]


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_small_mnist(folder, 220, 30)
    return folder


def _flags(data_root: Path, folder: Path, *more: str) -> list[str]:
    kept = [f"--run-dir={folder}", f"--checkpoint-dir={folder / 'checkpoints'}", "--resume=auto"]
    return [*_SETTINGS, f"--data-root={data_root}", *kept, *more]


def _outcome(folder: Path) -> tuple[list[tuple[float, float, float]], str]:
    """Losses and accuracy of each epoch, and the hash at the end."""
    epochs = {record["epoch"]: record for record in records(folder, "epoch")}
    assert [*epochs] == [1, 2, 3]
    figures = [(epochs[n]["train_loss"], epochs[n]["val_loss"], epochs[n]["val_accuracy"]) for n in epochs]
    return figures, records(folder, "end")[-1]["weights_sha256"]


# Not ddp: docs/resume.md.
@pytest.mark.parametrize(
    ("stop", "world_size", "strategy"),
    [(stop, 1, "custom_ddp") for stop in (1, 4, 6, 9)]
    + [(6, 3, name) for name in ("custom_ddp", "hook_per_parameter", "average_after_backward", "pipeline")]
    + [pytest.param(6, 3, "fsdp", marks=needs_fsdp_on_cpus)],
)
def test_stopped_within_an_epoch_the_run_continues_at_the_next_step_bit_for_bit(
    stop: int, world_size: int, strategy: str, data_root: Path, tmp_path: Path
) -> None:
    more = ["--checkpoint-every=1", f"--strategy={strategy}", *(["--accumulate=3"] if strategy == "pipeline" else [])]
    more += ["--model=mlp"] if world_size > 1 else []
    more += ["--pipeline-schedule=gpipe"] if strategy == "pipeline" else []  # works with each release of torch
    train_on_ranks(world_size, *_flags(data_root, tmp_path / "whole", *more))
    train_on_ranks(world_size, *_flags(data_root, tmp_path / "halved", *more, f"--max-steps={stop}"))
    train_on_ranks(world_size, *_flags(data_root, tmp_path / "halved", *more))
    assert _outcome(tmp_path / "halved") == _outcome(tmp_path / "whole")
    steps = [record["step"] for record in records(tmp_path / "halved", "step")]
    assert steps == [*range(1, 16)], "each step is trained once"
