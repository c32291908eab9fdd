"""A user's program may be called train.py, the commonest name there is, and use our package train."""

import subprocess
import sys
from pathlib import Path

from tests.cli import environment, records

_PROGRAM = """
import os
import signal

import torch
from jobspec.train import Run
from torch.utils.data import Dataset


class Points(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        x = torch.tensor([index / 64, 1.0])
        return x, x.sum()


if __name__ == "__main__":
    run = Run(run_dir="run", checkpoint_dir="run", checkpoint_every=1, log_every=1, resume="auto", device="cpu")
    model = run.wrap(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.restore(model=model, optimizer=optimizer)
    for epoch in run.epochs(2):
        for x, y in run.batches(Points(), batch_size=8, workers=1):
            run.step(lambda batch: (model(batch[0])[:, 0] - batch[1]).square(), (x, y), optimizer)
            if run.steps_done == 5 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                run.mean(0.0)  # all ranks are here
                os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_program_called_train_py_with_workers_is_killed_and_resumes_on_two_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_PROGRAM)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    words = [*torchrun, "train.py"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    starts, steps = records(tmp_path / "run", "start"), records(tmp_path / "run", "step")
    assert len(starts) == 2 and steps[-1]["step"] == 16
    assert "resume: " in done.stdout
