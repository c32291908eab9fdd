"""`--tensorboard` writes RUN_DIR/tensorboard; `tensorboard --logdir RUN_DIR` shows it."""

from collections.abc import Sequence
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import torch

from train.config import setting
from train.errors import naming_failures, refuse_without
from train.records.observer import EpochRecord, Observer, RunEnd, StepRecord


class TensorBoard(Observer):
    """The observer of rank 0 that writes each known step and each epoch.

    device: whose memory is shown; on a CPU, the memory of the process.
    """

    def __init__(self, run_dir: str, device: torch.device) -> None:
        refuse_without("tensorboard", setting("tensorboard"), "tensorboard")
        self._folder, self._device = Path(run_dir) / "tensorboard", device
        with naming_failures(f"{setting('run_dir')}: cannot write {self._folder}"):
            self._folder.mkdir(parents=True, exist_ok=True)
        self._writer: Any = None  # torch.utils.tensorboard's SummaryWriter, from the first step on

    def step_ended(self, step: int, known: Sequence[StepRecord]) -> None:
        for record in known:
            values: dict[str, float | None] = {
                "train/loss": record.loss,
                "train/lr": record.lr,
                "train/grad_norm": record.grad_norm,
                "speed/samples_per_second": record.samples_per_second,
                "speed/seconds_per_step": record.seconds_per_step,
                **{f"train/{name}": value for name, value in record.values.items()},
                "share_of_time/data": record.input_share,
                "share_of_time/communication": record.communication_share,
            }
            self._write(record.step, values, record.time)
        if known:
            peak = 1024 * getrusage(RUSAGE_SELF).ru_maxrss
            if self._device.type == "cuda":
                peak = torch.cuda.max_memory_allocated(self._device)
            self._write(step, {"memory/peak_mib": peak / 2**20}, known[-1].time)
            self._writer.flush()  # an error ends the process at once; unwritten values would be lost

    def epoch_ended(self, record: EpochRecord) -> None:
        values = {"train_loss": record.train_loss, **record.values}
        self._write(record.step, {f"epoch/{name}": value for name, value in values.items()})

    def run_ended(self, end: RunEnd) -> None:
        if self._writer is not None:
            self._writer.close()

    def _write(self, step: int, values: dict[str, Any], time: float | None = None) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # imported here: it takes a second

            # A resumed run may write some steps again; TensorBoard then forgets the first version.
            self._writer = SummaryWriter(str(self._folder), purge_step=step)
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(name, value, step, walltime=time)
