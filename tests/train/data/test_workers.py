"""DataLoader workers: forked from a script as it stands, deaf to a scheduler's signals, gone with their rank."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import ROOT, environment, start_ranks

# Reads one batch, waits for a line, and reads the rest.
_RANK = """
import os, sys, threading
import torch
from train import datasets
from train.data.batches import Batches
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


def _workers(rank: subprocess.Popen[str]) -> list[int]:
    tasks = Path(f"/proc/{rank.pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def test_signals_to_all_processes_end_no_worker(tmp_path: Path) -> None:
    rank = _start(tmp_path)
    workers = _workers(rank)
    assert len(workers) == 2
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        for pid in workers:
            os.kill(pid, number)
    out, _ = rank.communicate("\n")
    assert out == "40\n"
    assert rank.returncode == 0


def test_workers_end_after_a_rank_that_was_killed(tmp_path: Path) -> None:
    rank = _start(tmp_path)
    ends = [os.pidfd_open(pid) for pid in _workers(rank)]
    rank.kill()
    rank.wait()
    for end in ends:
        select.select([end], [], [])


# As docs/own-loop.md writes a program that is called train.py: no `__main__` guard; nothing could be pickled.
_PROGRAM = """
import threading
import torch
from jobspec.train import Run

run = Run(seed=1)
model = run.wrap(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
def local():
    class Numbers(torch.utils.data.Dataset):
        lock, scale = threading.Lock(), lambda self, x: x / 8
        def __len__(self): return 8
        def __getitem__(self, index): return self.scale(torch.full((64, 64), float(index)) @ torch.eye(64))[0, :1]
    return Numbers()
dataset = local()
seen = []
for epoch in run.epochs(2):
    for batch in run.batches(dataset, 4, collate=lambda samples: torch.stack(samples), workers=2):
        seen += batch.flatten().tolist()
        run.step(lambda x: model(x).square().mean(), batch, optimizer)
    found = run.evaluate(lambda x: {"mean": x.mean()}, dataset, 4, collate=lambda x: torch.stack(x), workers=1)
print(found, len(seen), flush=True)
"""


_TRAINER = """
from train import Trainer
from train.config import TrainConfig

trainer = Trainer(TrainConfig(model="mlp", max_steps=1, batch_size=64, workers=1, input="loader"))
trainer.fit()
"""


@pytest.mark.slow
def test_a_program_that_does_not_close_its_trainer_ends_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_TRAINER)
    (rank,) = start_ranks(1, program=(str(tmp_path / "program.py"),))
    said = rank.communicate()
    assert rank.returncode == 0, said


# The watchdog's thread writes signs of life and the owner's file without a pause.
_FORKING = """
import sys
import torch
from train import Run
from train.loop import watchdog

watchdog.BEAT_S = 0.001
run = Run(seed=1, run_dir=sys.argv[1])
model = run.wrap(torch.nn.Linear(1, 1))
optimizer, read = torch.optim.SGD(model.parameters(), lr=1e-3), 0
for epoch in run.epochs(50):
    for batch in run.batches(torch.utils.data.TensorDataset(torch.ones(2, 1)), 2, workers=1):
        run.step(lambda part: model(part[0]).mean(), batch, optimizer)
        read += 1
print(read, flush=True)
"""


@pytest.mark.slow
def test_a_hundred_forks_beside_the_threads_of_a_run_end(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_FORKING)
    ranks = start_ranks(2, program=(str(tmp_path / "program.py"), str(tmp_path)))
    said = [rank.communicate() for rank in ranks]
    assert [out.splitlines()[-1:] for out, _ in said] == [["50"]] * 2, said


@pytest.mark.slow
def test_a_program_called_train_py_needs_no_guard_for_its_workers_and_nothing_that_pickles(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_PROGRAM)
    ranks = start_ranks(2, program=(str(tmp_path / "train.py"),), OMP_NUM_THREADS="2")
    said = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert [out.splitlines()[-1] for out, _ in said] == ["{'mean': 0.4375} 8"] * 2
