"""DataLoader workers: not forked from a process with threads, deaf to a scheduler's signals, gone with their rank."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from tests.cli import ROOT, environment

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


def test_two_workers_come_from_a_server_and_signals_to_all_processes_end_none(tmp_path: Path) -> None:
    rank = _start(tmp_path)
    server, workers = _server_and_workers(rank)
    assert len(workers) == 2
    for number in (signal.SIGTERM, signal.SIGUSR1):
        for pid in (server, *workers):
            os.kill(pid, number)
    out, _ = rank.communicate("\n")
    assert out == "40\n"
    assert rank.returncode == 0


def test_workers_and_their_server_end_after_a_rank_that_was_killed(tmp_path: Path) -> None:
    rank = _start(tmp_path)
    server, workers = _server_and_workers(rank)
    ends = [os.pidfd_open(pid) for pid in (server, *workers)]
    rank.kill()
    rank.wait()
    for end in ends:
        select.select([end], [], [])
