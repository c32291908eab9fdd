"""A signal to any process of a run: all ranks save the same step and end, and the next start goes on there."""

import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli import ROOT, environment, records, start_ranks, wait_until_it_trains
from tests.idx import write_small_mnist
from tests.ranks import train_on_ranks

# Dropout and momentum: both would show a random state or an optimizer that was not restored.
_SETTINGS = ["--model=mnist_cnn", "--dataset=mnist", "--optimizer=sgd", "--momentum=0.9"]
_SETTINGS += ["--batch-size=100", "--epochs=2", "--log-every=2"]
_STEPS = 60  # an epoch; a second or more, so that it can be stopped in the middle
_STOPPED = 143


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_small_mnist(folder, 100 * _STEPS, 100)
    return folder


@pytest.fixture(scope="module")
def whole(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two processes that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    train_on_ranks(2, *_flags(data_root, folder))
    return folder


def _flags(data_root: Path, folder: Path, *more: str) -> list[str]:
    kept = [f"--run-dir={folder}", f"--checkpoint-dir={folder / 'checkpoints'}", "--resume=auto"]
    return [*_SETTINGS, f"--data-root={data_root}", *kept, *more]


def _start_torchrun(flags: list[str], *options: str) -> subprocess.Popen[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *options]
    return subprocess.Popen(
        [*torchrun, "-m", "train", *flags],
        env=environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _end(*processes: subprocess.Popen[str]) -> tuple[list[int], str]:
    """The exit codes, and what they had not yet said; that of torchrun ends with the last process that it started."""
    said = [process.communicate() for process in processes]
    return [process.returncode for process in processes], "".join(f"{out}{err or ''}" for out, err in said)


def _stopped(ranks: list[subprocess.Popen[str]], to: int, number: int = signal.SIGTERM) -> str:
    """Signal one rank once it trains, which has to stop all; what they said."""
    wait_until_it_trains(ranks[0])
    ranks[to].send_signal(number)
    codes, said = _end(*ranks)
    assert codes == [_STOPPED, _STOPPED], said
    return said


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _finish_and_compare(data_root: Path, folder: Path, whole: Path) -> None:
    train_on_ranks(2, *_flags(data_root, folder))
    _compare(folder, whole)


def _compare(folder: Path, whole: Path) -> None:
    """Each step was trained once, and the run ended as if nobody had stopped it."""
    assert [record["step"] for record in records(folder, "step")] == [*range(1, 2 * _STEPS + 1)]
    for name in ("train_loss", "val_loss", "val_accuracy"):
        figures = [[record[name] for record in records(run, "epoch")] for run in (folder, whole)]
        assert figures[0] == figures[1]
    (end,), (expected,) = records(folder, "end"), records(whole, "end")
    assert end["weights_sha256"] == expected["weights_sha256"]


def test_a_signal_to_one_rank_stops_all_in_mid_epoch_and_the_next_start_goes_on_there(
    data_root: Path, whole: Path, tmp_path: Path
) -> None:
    for number, to in [(signal.SIGTERM, 1), (signal.SIGUSR1, 0)]:
        said = _stopped(start_ranks(2, *_flags(data_root, tmp_path)), to, number)
        stop = records(tmp_path, "stop")[-1]
        assert f"stopped by a signal at epoch {stop['epoch']}, step {stop['step']}; saved, --resume=auto" in said
    assert 0 < records(tmp_path, "stop")[0]["step"] < _STEPS, "in the middle of the first epoch"
    _finish_and_compare(data_root, tmp_path, whole)


def test_a_signal_to_torchrun_or_one_of_its_ranks_stops_all_and_the_next_attempt_goes_on_there(
    data_root: Path, whole: Path, tmp_path: Path
) -> None:
    # By itself torchrun dies of SIGUSR1, and its ranks would train on without it.
    handled = "--signals-to-handle=SIGTERM,SIGUSR1"
    for stops, (number, options, code) in enumerate(
        [(signal.SIGTERM, [], 1), (signal.SIGUSR1, [handled], 1), (signal.SIGUSR1, [], -signal.SIGUSR1)]
    ):
        torchrun = _start_torchrun(_flags(data_root, tmp_path), *options)
        wait_until_it_trains(torchrun)
        torchrun.send_signal(number)
        codes, said = _end(torchrun)
        assert codes == [code], said
        assert len(records(tmp_path, "stop")) == stops + 1, said

    torchrun = _start_torchrun(_flags(data_root, tmp_path), "--max-restarts=1")
    wait_until_it_trains(torchrun)
    os.kill(_children(torchrun.pid)[-1], signal.SIGTERM)
    codes, said = _end(torchrun)
    assert codes == [0], said
    assert [start["world"]["attempt"] for start in records(tmp_path, "start")] == [0, 0, 0, 0, 1]
    _compare(tmp_path, whole)


def test_signals_that_never_cease_do_not_disturb_the_save(data_root: Path, whole: Path, tmp_path: Path) -> None:
    ranks = start_ranks(2, *_flags(data_root, tmp_path))
    wait_until_it_trains(ranks[0])
    while any(rank.poll() is None for rank in ranks):  # before, in and after the save
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
            rank.send_signal(signal.SIGUSR1)
    codes, said = _end(*ranks)
    assert codes == [_STOPPED, _STOPPED], said
    _finish_and_compare(data_root, tmp_path, whole)


def test_the_loader_outlives_the_signal_that_a_scheduler_sends_to_all_processes(
    data_root: Path, whole: Path, tmp_path: Path
) -> None:
    ranks = start_ranks(2, *_flags(data_root, tmp_path, "--input=loader", "--workers=1"))
    wait_until_it_trains(ranks[0])
    servers = [child for rank in ranks for child in _children(rank.pid)]
    workers = [worker for server in servers for worker in _children(server)]
    everybody = [*workers, *servers, *(rank.pid for rank in ranks)]
    assert len(workers) >= len(ranks)
    for pid in everybody:
        os.kill(pid, signal.SIGTERM)
    codes, said = _end(*ranks)
    assert codes == [_STOPPED, _STOPPED], said
    _finish_and_compare(data_root, tmp_path, whole)


@pytest.mark.parametrize("to", [0, 1])
def test_a_signal_to_one_rank_in_the_evaluation_cuts_it_short_and_the_next_start_makes_up_for_it(
    to: int, tmp_path: Path
) -> None:
    write_small_mnist(tmp_path, 1000, 20_000)
    flags = _flags(tmp_path, tmp_path / "run", "--max-steps=10", "--log-every=10")
    _stopped(start_ranks(2, *flags), to)  # at the line of the last step
    assert records(tmp_path / "run", "epoch") == []
    assert [stop["step"] for stop in records(tmp_path / "run", "stop")] == [10]

    train_on_ranks(2, *flags)
    (epoch,) = records(tmp_path / "run", "epoch")
    assert (epoch["epoch"], epoch["step"], epoch["samples"]) == (1, 10, 1000)
    assert len(records(tmp_path / "run", "step")) == 10
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000010"]


def test_a_stop_whose_record_finds_the_disk_full_has_saved_and_says_so(tmp_path: Path) -> None:
    write_small_mnist(tmp_path, 1000, 20_000)
    run_dir, size_bytes = tmp_path / "run", 2**26  # larger than a checkpoint
    run_dir.mkdir()
    (run_dir / "metrics.jsonl").touch()
    os.truncate(run_dir / "metrics.jsonl", size_bytes)
    ranks = start_ranks(2, *_flags(tmp_path, run_dir, "--max-steps=10", "--log-every=10"))
    wait_until_it_trains(ranks[0])
    while not re.search(rb'"event": ?"step"', (run_dir / "metrics.jsonl").read_bytes()[size_bytes:]):
        time.sleep(0.01)  # the line of a step comes before its record
    # In the evaluation.  The kernel refuses to let the file grow, as it does on a full disk.
    resource.prlimit(ranks[0].pid, resource.RLIMIT_FSIZE, (size_bytes, size_bytes))
    ranks[0].send_signal(signal.SIGTERM)
    codes, said = _end(*ranks)
    assert codes == [1, _STOPPED], said
    assert "stopped by a signal at epoch 1, step 10; saved, --resume=auto" in said
    assert f"error: --run-dir: cannot write {run_dir}/metrics.jsonl: File too large\n" in said
    assert "Traceback" not in said
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == ["step-00000010"]


_SLOW_DISK = """
import os, time
fsync = os.fsync
def slow_fsync(descriptor):
    time.sleep(5)
    fsync(descriptor)
os.fsync = slow_fsync
"""


def test_a_save_may_take_longer_than_a_collective_may(data_root: Path, tmp_path: Path) -> None:
    # Python runs this file at its start: each of the four syncs of a save takes as long as on a disk with a backlog.
    (tmp_path / "sitecustomize.py").write_text(_SLOW_DISK)
    flags = _flags(data_root, tmp_path, "--collective-timeout-s=12")
    _stopped(start_ranks(2, *flags, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}"), 1)
    (stop,) = records(tmp_path, "stop")
    assert stop["saved"] and (tmp_path / "checkpoints" / f"step-{stop['step']:08d}" / "manifest.json").is_file()


def test_a_save_that_fails_is_reported_and_ends_all_ranks(data_root: Path, tmp_path: Path) -> None:
    ranks = start_ranks(2, *_flags(data_root, tmp_path))
    wait_until_it_trains(ranks[0])
    (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")  # with the file of its owner
    (tmp_path / "checkpoints").write_text("no folder any more")
    ranks[0].send_signal(signal.SIGTERM)
    codes, said = _end(*ranks)
    assert codes == [1, 1], said
    assert "cannot save a checkpoint" in said
