"""What a run tells its observers: its start, each step once its loss is known, incidents, epochs and its end."""

import math
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn, optim

from train.collectives.agreement import mistakes_shared_by_all_ranks
from train.config import TrainConfig
from train.data.sampler import ShardSampler
from train.errors import SharedError, UserError
from train.loop.losses import Means, PendingLosses
from train.loop.position import Position
from train.loop.step import StepResult
from train.records.metrics import MetricsFile, start_record
from train.records.observer import EpochRecord, Observer, RunEnd, StepRecord, own_names
from train.records.profile import Profile
from train.records.progress import Progress
from train.records.tensorboard import TensorBoard
from train.world import placement
from train.world.environment import World


@dataclass
class Present:
    """What is known of the present batch of a loop.

    Of several steps with one batch, the loss of the first that was not skipped counts.
    is_out: the loop has it now.  is_used: by run.step() or run.apply().  splits: a step runs that may cut the batch.
    evaluates: run.evaluate() runs.
    by_hand: what run.backward() has returned, until run.apply() uses it.
    """

    batch: Any = None
    is_out: bool = False
    is_used: bool = False
    splits: bool = False
    evaluates: bool = False
    by_hand: StepResult | None = None
    result: StepResult | None = None
    lr: float = 0.0
    incidents: list[tuple[str, str]] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    def refuse_left_gradient(self, modules: Iterable[nn.Module]) -> None:
        """Raise UserError if run.backward() has left a gradient in p.grad that neither run.apply() nor a user took."""
        params = (param for module in modules for param in module.parameters())
        if self.by_hand is not None and any(param.grad is not None and param.grad.any() for param in params):
            raise UserError(
                "run.backward() without run.apply() after it in the same batch: no checkpoint has its gradient; to "
                "accumulate, give run.batches() the whole batch and micro_batches="
            )

    def keep(self, found: StepResult) -> None:
        """Remember what run.backward() has returned: of several in a batch, the last with a loss."""
        if self.by_hand is None or found.skipped is None:
            self.by_hand = found

    def note(self, result: StepResult, optimizer: optim.Optimizer) -> None:
        self.by_hand, self.is_used = None, True
        if result.repeated is not None:
            self.incidents.append(("halved_micro_batch", result.repeated))
        if result.skipped is not None:
            self.incidents.append(("skipped_step", f"skipped by all ranks, because {result.skipped}"))
        elif self.result is None and (isinstance(result.weight, Tensor) or result.weight):
            self.result, self.lr = result, optimizer.param_groups[0]["lr"]


class Records:
    """The records of a run on this rank, and the means of its epoch.

    recorded: the names of the settings that the record of the start has.  Making it is a collective.
    observers: who gets them.  epoch_began: when; None outside of the loop over epochs.
    values: what run.record() has added to the epoch.  trains: a batch of the epoch was used.
    """

    def __init__(
        self, config: TrainConfig, world: World, device: torch.device, observers: Iterable[Observer], recorded: set[str]
    ) -> None:
        self.observers: list[Observer] = [*observers]
        self._world, self._device, self._recorded = world, device, recorded
        self._where = placement.where_ranks_are(world, device)
        self._log_every = config.log_every
        self.means, self.pending = Means(), PendingLosses()
        self.values: dict[str, Any] = {}
        self.epoch_began: float | None = None
        self.trains = False
        self._trained_at = 0.0

    def open(self, config: TrainConfig, files: ExitStack) -> None:
        """Add the observers that the config asks for; `files` closes their files.  A collective."""
        is_rank_0, device = self._world.rank == 0, self._device
        with mistakes_shared_by_all_ranks():
            # Progress comes first: the disk of the metrics may be full.
            added: list[Observer] = [Progress()] if is_rank_0 else []
            if config.run_dir is not None and is_rank_0:
                added.append(files.enter_context(MetricsFile(config.run_dir)))
            if config.tensorboard and is_rank_0:
                added.append(TensorBoard(str(config.run_dir), device))
            if config.profile is not None and is_rank_0:
                added.append(Profile(config.profile, str(config.run_dir), device))
        self.observers = [*added, *self.observers]

    def started(self, config: TrainConfig, sampler: ShardSampler) -> None:
        start = start_record(config, self._world, self._device, self._where, sampler, self._recorded)
        for observer in self.observers:
            observer.run_started(start)

    def incident(self, step: int, kind: str, text: str) -> None:
        for observer in self.observers:
            observer.incident(step, kind, text)

    def add(self, values: dict[str, Tensor | float], present: Present) -> None:
        """Add values to the record of the step, or, between two loops over batches, of the epoch."""
        if self.epoch_began is None and not present.is_out:
            raise UserError("run.record() belongs into the loop over run.epochs()")
        record = StepRecord if present.is_out else EpochRecord
        if wrong := sorted(values.keys() & own_names(record)):
            raise UserError(f"run.record(): {', '.join(wrong)} is a name that the record uses: choose another one")
        # As they are now: the loop may change a tensor in place.
        now = {name: x.detach().clone() if isinstance(x, Tensor) else x for name, x in values.items()}
        (present.values if present.is_out else self.values).update(now)

    def note_step(self, position: Position, present: Present, samples: int, own: int) -> None:
        """Keep what is known of the step that was just counted: `samples` of all ranks, `own` of this one."""
        self.trains |= present.is_used
        for kind, text in present.incidents:
            self.incident(position.steps, kind, text)
        if present.result is not None:
            self.pending.add(present.result, present.values, own, position.epoch, position.steps, present.lr, samples)

    def step_ended(self, step: int, now: bool) -> None:
        """Record a step; losses are read once log_every are pending, or `now`.  A collective."""
        self.read_losses(step, now or len(self.pending) == self._log_every)

    def read_losses(self, step: int, now: bool = True) -> None:
        """Tell the observers that the step has ended, with the losses of all pending steps if `now`.  A collective."""
        known = self.pending.reduce(self.means) if now else []
        for record in known:
            if not math.isfinite(record.loss):
                text = f"the loss is {record.loss} and its gradient finite: a mean of no labels? Return (sum, weight)"
                self.incident(record.step, "no_loss", text)
        for observer in self.observers:
            observer.step_ended(step, known)

    def begin_epoch(self) -> None:
        self.values, self.epoch_began = {}, time.monotonic()

    def begin_means(self) -> None:
        self.means, self.trains = Means(), False

    def batches_ended(self) -> None:
        self._trained_at = time.monotonic()

    def epoch_ended(self, position: Position, is_left: bool) -> None:
        """Record an epoch; is_left: by run.end(), before its last batch.  A collective."""
        began, sampler, now = self.epoch_began, position.sampler, time.monotonic()
        if began is None or sampler is None or (self._trained_at < began and not is_left):
            raise UserError("an epoch ended without a new loop over run.batches(): nothing was trained")
        if self.pending:  # the loop over batches was left by break
            self.read_losses(position.steps)
        record = EpochRecord(
            epoch=position.epoch,
            step=position.steps,
            train_loss=self.means.loss if self.means.samples else None,
            samples=self.means.samples,
            samples_read=sampler.stretch(sampler.step - 1).stop,
            seconds=round(now - began, 3),
            train_seconds=round(max(self._trained_at - began, 0.0), 3),
            values={name: float(value) for name, value in self.values.items()},
        )
        for observer in self.observers:
            observer.epoch_ended(record)

    def refuse_empty(self, epoch: int, present: Present) -> None:
        """Raise SharedError at the end of an epoch if no batch was used, or all steps were skipped."""
        if self.means.samples == 0 and present.incidents:
            raise SharedError(f"every step of epoch {epoch} was skipped; the run ends here")
        if self.means.samples == 0 and not self.trains:
            raise SharedError(f"no batch of epoch {epoch} reached run.step() or run.apply(): nothing was trained")

    def run_ended(self, position: Position, saved: bool, weights: str | None) -> None:
        """weights: the hash of the last ones; None if a signal has stopped the run."""
        self.epoch_began = None
        end = RunEnd(position.epoch, position.steps, saved, weights)
        for observer in self.observers:
            observer.run_ended(end)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch_means": vars(self.means)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.means = Means(**state["epoch_means"])
