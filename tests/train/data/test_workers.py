"""DataLoader workers: not forked from a process with threads, deaf to a scheduler's signals, gone with their rank."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli import ROOT, environment

pytestmark = pytest.mark.timeout(240)

# Reads one batch, waits for a line, and reads the rest.
_RANK = """
import os, sys, threading
import torch
from train import datasets
from train.data.batches import Batches
if __name__ == "__main__":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    samples = datasets.load("synthetic", "", "train", 0)
    batches = Batches(samples, [[i, i + 1] for i in range(40)], torch.device("cpu"), "loader", 2)
    read = iter(batches)
    next(read)
    print("reads", flush=True)
    sys.stdin.readline()
    print(1 + sum(1 for _ in read), flush=True)
    os._exit(0)  # as python -m train does
"""


def _start(folder: Path) -> subprocess.Popen[str]:
    file = folder / "rank.py"
    file.write_text(_RANK)
    rank = subprocess.Popen(
        [sys.executable, str(file)],
        env=environment(),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert rank.stdout is not None
    assert rank.stdout.readline() == "reads\n"
    return rank


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def _server_and_workers(rank: subprocess.Popen[str]) -> tuple[int, list[int]]:
    """The server is the child that has children of its own."""
    of_child = {child: _children(child) for child in _children(rank.pid)}
    ((server, workers),) = [(child, children) for child, children in of_child.items() if children]
    return server, workers


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_two_workers_come_from_a_server_and_signals_to_all_processes_end_none(tmp_path: Path) -> None:
    rank = _start(tmp_path)
    server, workers = _server_and_workers(rank)
    assert len(workers) == 2
    for number in (signal.SIGTERM, signal.SIGUSR1):
        for pid in (server, *workers):
            os.kill(pid, number)
    out, _ = rank.communicate("\n", timeout=100)
    assert out == "40\n"
    assert rank.returncode == 0


def test_workers_and_their_server_end_soon_after_a_rank_that_was_killed(tmp_path: Path) -> None:
    rank = _start(tmp_path)
    server, workers = _server_and_workers(rank)
    rank.kill()
    rank.wait()
    deadline = time.monotonic() + 20
    while any(map(_is_running, (server, *workers))) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(_is_running, (server, *workers)))
