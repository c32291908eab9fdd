"""A run that was killed and started again ends like one that was not."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli import ROOT, command, environment, records, start_ranks, train
from tests.idx import write_small_mnist
from tests.ranks import train_on_ranks
from tests.train.devices import needs_fsdp_on_cpus

# Dropout and momentum: both would show a random state or an optimizer that was not restored.
_SETTINGS = ["--model=mnist_cnn", "--dataset=mnist", "--optimizer=sgd", "--momentum=0.9", "--lr=0.01"]
_SETTINGS += ["--scheduler=step", "--batch-size=50", "--epochs=3", "--log-every=1"]


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_small_mnist(folder, 220, 30)
    return folder


def _flags(data_root: Path, folder: Path, *more: str) -> list[str]:
    kept = [f"--run-dir={folder}", f"--checkpoint-dir={folder / 'checkpoints'}", "--resume=auto"]
    return [*_SETTINGS, f"--data-root={data_root}", *kept, *more]


def _run_until(flags: list[str], world_size: int, reached: Callable[[str], bool]) -> None:
    """Start a run and kill all of it, without a warning, once a line of its output says so."""
    process = subprocess.Popen(
        command(world_size, *flags),
        env=environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    pids = {process.pid}
    for line in process.stdout:
        pids |= {int(pid) for pid in _descendants(process.pid)}
        if reached(line):
            break
    else:
        pytest.fail("the run ended before it was to be killed")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    process.wait()


def _descendants(pid: int) -> list[str]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [*children, *(grandchild for child in children for grandchild in _descendants(int(child)))]


def _outcome(folder: Path) -> tuple[list[tuple[float, float, float]], str]:
    """Losses and accuracy of each epoch, and the hash at the end."""
    epochs = {record["epoch"]: record for record in records(folder, "epoch")}
    assert [*epochs] == [1, 2, 3]
    figures = [(epochs[n]["train_loss"], epochs[n]["val_loss"], epochs[n]["val_accuracy"]) for n in epochs]
    return figures, records(folder, "end")[-1]["weights_sha256"]


@pytest.mark.parametrize("world_size", [1, 2], ids=lambda n: f"world={n}")
def test_killed_between_epochs_and_resumed_ends_with_the_same_losses(
    world_size: int, data_root: Path, tmp_path: Path
) -> None:
    whole = train(world_size, *_flags(data_root, tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr

    flags = _flags(data_root, tmp_path / "killed")
    saved = tmp_path / "killed" / "checkpoints"  # a thread writes it while the next epoch begins
    _run_until(flags, world_size, lambda line: "epoch 2/3  step" in line and any(saved.glob("step-*")))
    resumed = train(world_size, *flags)
    assert resumed.returncode == 0, resumed.stderr

    assert "resume: " in resumed.stdout
    again = [record["epoch"] for record in records(tmp_path / "killed", "epoch")]
    assert again == [1, 2, 3], "epochs that were saved are not trained again"
    assert _outcome(tmp_path / "killed") == _outcome(tmp_path / "whole")


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
    train_on_ranks(world_size, *_flags(data_root, tmp_path / "whole", *more))
    train_on_ranks(world_size, *_flags(data_root, tmp_path / "halved", *more, f"--max-steps={stop}"))
    train_on_ranks(world_size, *_flags(data_root, tmp_path / "halved", *more))
    assert _outcome(tmp_path / "halved") == _outcome(tmp_path / "whole")
    steps = [record["step"] for record in records(tmp_path / "halved", "step")]
    assert steps == [*range(1, 16)], "each step is trained once"


@pytest.mark.parametrize(
    ("processes", "other"),
    [
        pytest.param(1, [], id="processes"),
        pytest.param(1, ["--strategy=single"], id="strategy", marks=pytest.mark.slow),
        pytest.param(2, ["--accumulate=5"], id="accumulation", marks=pytest.mark.slow),
        pytest.param(2, ["--sync=bf16"], id="sync", marks=pytest.mark.slow),
    ],
)
def test_a_run_resumes_with_other_settings_in_another_folder_with_the_same_samples(
    processes: int, other: list[str], data_root: Path, tmp_path: Path
) -> None:
    no_dropout = ["--dropout=0", "--checkpoint-every=1"]
    train_on_ranks(2, *_flags(data_root, tmp_path / "whole", *no_dropout))
    train_on_ranks(2, *_flags(data_root, tmp_path / "begun", *no_dropout, "--max-steps=7"))
    (tmp_path / "begun").rename(tmp_path / "moved")
    train_on_ranks(processes, *_flags(data_root, tmp_path / "moved", *no_dropout, *other))
    steps = [record["step"] for record in records(tmp_path / "moved", "step")]
    assert steps == [*range(1, 16)], "each step is trained once"
    for moved, whole in zip(_outcome(tmp_path / "moved")[0], _outcome(tmp_path / "whole")[0], strict=True):
        assert moved == pytest.approx(whole, rel=1e-2 if other == ["--sync=bf16"] else 1e-4)


@pytest.mark.slow
def test_only_rank_0_reads_and_writes_checkpoints(data_root: Path, tmp_path: Path) -> None:
    (tmp_path / "1").touch()  # no folder for rank 1
    for steps in (4, 9):
        flags = [*_flags(data_root, tmp_path), f"--checkpoint-dir={tmp_path}/{{rank}}", f"--max-steps={steps}"]
        said = [rank.communicate() for rank in start_ranks(2, *flags)]
        assert (tmp_path / "0" / f"step-{steps:08d}").is_dir(), said
    assert f"resume: {tmp_path}/0/step-00000004" in said[0][0]
