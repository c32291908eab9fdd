"""`python -m train` with one thing added: a `timed_epoch` record, for benchmarks/epoch.py.

The clock runs on rank 0, from where all ranks are connected, built and about to ask for the first batch, to where
the last optimizer step is done and the losses of all steps are on record.
"""

from __future__ import annotations

import time
from unittest.mock import patch

import torch.distributed as dist

from train.__main__ import main
from train.trainer import Means, Trainer


class TimedTrainer(Trainer):
    """A Trainer whose training epochs are timed, without their evaluation."""

    def train_epoch(self) -> Means:
        dist.barrier()
        started = time.perf_counter()
        means = super().train_epoch()
        seconds = time.perf_counter() - started
        self.metrics.write("timed_epoch", train_loss=means.loss, train_seconds=seconds)
        return means


if __name__ == "__main__":
    with patch("train.trainer.Trainer", TimedTrainer):
        raise SystemExit(main())
