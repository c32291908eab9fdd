"""The training loop: each step's gradient is the mean over the global batch, whatever the number of processes."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn, optim

from train import lost_ranks
from train.broadcast import broadcast_from_rank_0
from train.checkpoint import Checkpoints, wait_on_all_ranks
from train.config import TrainConfig
from train.errors import SharedError, UserError
from train.metrics import MetricsFile, weights_sha256
from train.optimizers import lr_of_epoch
from train.progress import Progress, say
from train.same_run import refuse_other_run
from train.sampler import ShardSampler
from train.shard import step_range
from train.stop import StopAgreement, Stopped, StopSignal
from train.strategies import Setting
from train.sync_batchnorm import has_sync_batchnorm
from train.world import World

_AUTOCAST = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Means:
    """Sums over samples that become means; a mean over ranks needs the sums, not the ranks' means."""

    loss_sum: float = 0.0
    correct: float = 0.0
    samples: int = 0

    @property
    def loss(self) -> float:
        return self.loss_sum / self.samples

    @property
    def accuracy(self) -> float:
        return self.correct / self.samples


class Trainer:
    """Trains `model` through `wrapped` and evaluates it; all ranks make one each and call the same methods.

    Args:
        setting: the device, and whether ranks have buffers of their own.
        model: the bare module; its parameters are the optimizer's, its state dict is what is saved.
        wrapped: what a strategy made of it.
        sampler: this rank's share of each training step; `train_batches` follows it.
        validation_batches: this rank's share of the validation set; as many on all ranks, of which some may be empty.
        stop: whether this rank was asked to stop.
    """

    def __init__(
        self,
        config: TrainConfig,
        world: World,
        setting: Setting,
        model: nn.Module,
        wrapped: nn.Module,
        optimizer: optim.Optimizer,
        sampler: ShardSampler,
        train_batches: Iterable[tuple[Tensor, Tensor]],
        validation_batches: Iterable[tuple[Tensor, Tensor]],
        metrics: MetricsFile,
        checkpoints: Checkpoints | None,
        stop: StopSignal,
    ) -> None:
        self.config, self.world, self.setting, self.device = config, world, setting, setting.device
        self.model, self.wrapped, self.optimizer = model, wrapped, optimizer
        self.sampler, self.train_batches, self.validation_batches = sampler, train_batches, validation_batches
        self.metrics, self.checkpoints = metrics, checkpoints
        self._stop_agreement = StopAgreement(stop)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.precision == "fp16")
        self.step = 0
        self.evaluated_step = 0  # step of the last evaluation; a run may be stopped before one is done
        self.epoch_means = Means()
        self._no_sync = getattr(wrapped, "no_sync", nullcontext)
        self._runs_on_empty_batches = has_sync_batchnorm(model)

    def fit(self) -> bool:
        """Train until the last epoch or step, with a record, a line and a checkpoint for each epoch.

        Returns False if a signal stopped the run before: then its position is saved.
        """
        with lost_ranks.explained():
            try:
                self._run_epochs()
            except Stopped:
                self._end_early()
                return False
            self.metrics.write("end", step=self.step, weights_sha256=weights_sha256(self.model.state_dict()))
            self._wait_until_saved()
        return True

    def _run_epochs(self) -> None:
        for epoch in range(self.sampler.epoch, self.config.epochs + 1):
            if self._is_last_step() and self.evaluated_step == self.step:
                break
            started = time.monotonic()
            trained = self.train_epoch()
            train_seconds = time.monotonic() - started
            validated = self.evaluate()
            seconds = time.monotonic() - started
            self.evaluated_step = self.step
            self._refuse_if_not_finite(validated.loss, "validation loss")
            self.metrics.write(
                "epoch",
                epoch=epoch,
                step=self.step,
                train_loss=trained.loss,
                val_loss=validated.loss,
                val_accuracy=validated.accuracy,
                samples=trained.samples,
                seconds=round(seconds, 3),
                train_seconds=round(train_seconds, 3),
            )
            self._say(
                f"epoch {epoch}/{self.config.epochs}  train loss {trained.loss:.4f}  "
                f"validation loss {validated.loss:.4f}  accuracy {validated.accuracy:.2%}  {seconds:.1f} s"
            )
            if len(self.sampler) == 0:
                self.sampler.set_epoch(epoch + 1)
                self.epoch_means = Means()
            self.save()

    def _end_early(self) -> None:
        """Save where all ranks have stopped, and end together: a rank that is gone would take the others with it."""
        self.save()
        self._wait_until_saved()
        saved = self.config.checkpoint_dir is not None
        epoch = self.sampler.epoch
        # The line before the record: batch scripts look for it, and the disk of the record may be full.
        self._say(
            f"stopped by a signal at epoch {epoch}, step {self.step}; "
            + ("saved, --resume=auto continues there" if saved else "nothing is saved without --checkpoint-dir")
        )
        self.metrics.write("stop", epoch=epoch, step=self.step, saved=saved)

    def train_epoch(self) -> Means:
        """Run what is left of the sampler's epoch, up to max_steps.  Raises Stopped if a signal asks for it."""
        epoch, steps_left = self.sampler.epoch, len(self.sampler)
        lr = lr_of_epoch(self.config, epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.wrapped.train()
        progress = Progress(
            f"epoch {epoch}/{self.config.epochs}",
            total=steps_left + self.sampler.step,
            done=self.sampler.step,
            shown=self.world.rank == 0,
        )
        window: list[Tensor] = []
        self._stop_agreement.begin()
        # A run that was stopped after its last step, in the evaluation, has none left.
        for images, labels in () if self._is_last_step() else self.train_batches:
            window.append(self.train_step(images, labels))
            self.step += 1
            self.sampler.advance()
            stops = self._stop_agreement.reached()
            ends = len(self.sampler) == 0 or self._is_last_step()
            saves = self.config.checkpoint_every > 0 and self.step % self.config.checkpoint_every == 0
            if stops or ends or saves or len(window) == self.config.log_every:
                self._account(window, lr, progress)
                window = []
            if stops:
                progress.close()
                raise Stopped
            if ends:
                break
            if saves:
                self.save()
        progress.close()
        return self.epoch_means

    def train_step(self, images: Tensor, labels: Tensor) -> Tensor:
        """One optimizer step on this rank's share (maybe empty) of the global batch.

        Returns the sum of this rank's losses, on its device.
        """
        self._seed_step()
        stretch = step_range(self.sampler.num_samples, self.sampler.batch_size, self.sampler.step)
        # The wrapper takes the mean over ranks, so a sum over this rank's samples times this is the global mean.
        weight = self.world.world_size / len(stretch)
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        # As many micro-batches on each rank, because synchronised layers meet in each of them.
        parts = self.config.accumulate
        for index, (x, y) in enumerate(zip(images.tensor_split(parts), labels.tensor_split(parts), strict=True)):
            with self._no_sync() if index < parts - 1 else nullcontext():
                loss = self._loss_sum(x, y)
                self.scaler.scale(loss * weight).backward()
            loss_sum += loss.detach()
        if self.config.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return loss_sum

    def _loss_sum(self, images: Tensor, labels: Tensor) -> Tensor:
        if len(labels) == 0 and not self._runs_on_empty_batches:
            # Blank images with weight zero: gradients of zero, in the same order as on the other ranks.
            images, labels, weight = images.new_zeros((2, *images.shape[1:])), labels.new_zeros(2), 0.0
        else:
            weight = 1.0
        with self._autocast():
            try:
                logits = self.wrapped(images)
            except ValueError as error:
                if "more than 1 value per channel" not in str(error):
                    raise
                raise UserError(
                    f"epoch {self.sampler.epoch}, step {self.step + 1}: BatchNorm cannot be trained on the single "
                    "sample that this rank has left; choose another --batch-size"
                ) from None
        return weight * F.cross_entropy(logits.float(), labels, reduction="sum")

    @torch.no_grad()
    def evaluate(self) -> Means:
        """Mean loss and accuracy over the validation set, each sample once, the same on every rank.

        Raises Stopped if a signal asks for it.
        """
        self.model.eval()
        if self.setting.buffers_differ:
            broadcast_from_rank_0(list(self.model.buffers()), self.setting.group)
        sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        self._stop_agreement.begin()
        for images, labels in self.validation_batches:
            if len(labels):
                with self._autocast():
                    logits = self.model(images).float()
                loss = F.cross_entropy(logits, labels, reduction="sum").double()
                correct = (logits.argmax(dim=1) == labels).sum()
                sums += torch.stack([loss, correct, correct.new_tensor(len(labels))])
            if self._stop_agreement.reached():
                raise Stopped
        sums = sums.cpu()
        dist.all_reduce(sums)
        loss_sum, correct_sum, samples = sums.tolist()
        return Means(loss_sum, correct_sum, int(samples))

    def save(self) -> None:
        """Let rank 0 save the state after the current step; nothing without checkpoint_dir.  A collective."""
        self._wait_until_saved()  # the state before
        if self.checkpoints is not None:
            self.checkpoints.save(self.step, self.state_dict())

    def _wait_until_saved(self) -> None:
        if self.config.checkpoint_dir is not None:
            wait_on_all_ranks(self.world, self.checkpoints)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on, and the config that it was reached with."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "sampler": self.sampler.state_dict(),
            "step": self.step,
            "evaluated_step": self.evaluated_step,
            "epoch_means": vars(self.epoch_means),
            "config": self.config.model_dump(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was saved, on any number of processes.

        Raises UserError, with nothing loaded, if it belongs to another model or to other settings.
        """
        refuse_other_run(state["config"], self.config)
        self.sampler.load_state_dict(state["sampler"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.step, self.evaluated_step = state["step"], state["evaluated_step"]
        self.epoch_means = Means(**state["epoch_means"])
        if self.checkpoints is not None:
            self.checkpoints.set_aside_after(self.step, self._say)

    def _account(self, window: list[Tensor], lr: float, progress: Progress) -> None:
        """Add the losses of the last steps over all ranks: one message for many steps, so that none waits for it."""
        losses = torch.stack(window).cpu()
        dist.all_reduce(losses)
        first_step, first_position = self.step - len(window), self.sampler.step - len(window)
        window_means = Means()
        for offset, loss_sum in enumerate(losses.tolist()):
            stretch = step_range(self.sampler.num_samples, self.sampler.batch_size, first_position + offset)
            step, loss = first_step + offset + 1, loss_sum / len(stretch)
            self._refuse_if_not_finite(loss, f"loss of step {step}")
            for means in (window_means, self.epoch_means):
                means.loss_sum += loss_sum
                means.samples += len(stretch)
            self.metrics.write("step", epoch=self.sampler.epoch, step=step, loss=loss, lr=lr, samples=len(stretch))
        progress.update(len(window), window_means.loss)

    def _refuse_if_not_finite(self, loss: float, what: str) -> None:
        """End the run, on all ranks since all have the same sums, before anything worthless is saved."""
        if not math.isfinite(loss):
            raise SharedError(
                f"the {what} is {loss}: training cannot go on; a lower --lr, --clip-norm or --precision=fp32 may help"
            )

    def _seed_step(self) -> None:
        """Dropout's random numbers as a function of the position, so that a resumed run draws the same ones."""
        position = f"{self.config.seed} {self.sampler.epoch} {self.sampler.step} {self.world.rank}"
        seed = int.from_bytes(hashlib.blake2b(position.encode(), digest_size=4).digest(), "big")
        # Not torch.manual_seed, which formats a stack trace for each kind of device that is not in use.
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _autocast(self) -> torch.autocast:
        dtype = _AUTOCAST[self.config.precision]
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype != torch.float32)

    def _is_last_step(self) -> bool:
        return self.config.max_steps is not None and self.step >= self.config.max_steps

    def _say(self, text: str) -> None:
        if self.world.rank == 0:
            say(text)
