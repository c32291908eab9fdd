"""One optimizer step: micro-batches, autocast, loss scaling, clipping."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn, optim

from train.collectives.broadcast import broadcast_from_rank_0
from train.collectives.sync_batchnorm import has_sync_batchnorm
from train.config import TrainConfig
from train.data.sampler import ShardSampler
from train.data.shard import num_steps, seed_of, share
from train.errors import UserError
from train.loop import nonfinite
from train.loop.buffers import BufferCopies
from train.loop.ema import Ema
from train.loop.losses import StepOutcome, losses_of_samples
from train.loop.run import Run
from train.strategies import Wrapped, autocast
from train.world.environment import World


def refuse_impossible(config: TrainConfig, world: World, device: torch.device) -> None:
    """Raise UserError if the config cannot run on this many processes or on this device."""
    _, readers = config.reader(world.rank, world.world_size)
    if config.batch_size < readers:
        raise UserError(
            f"--batch-size is {config.batch_size}, the global batch, but "
            f"{readers} processes share it: give at least {readers}"
        )
    if config.strategy == "pipeline" and config.batch_size < config.accumulate:
        raise UserError(
            f"--batch-size is {config.batch_size} and --accumulate {config.accumulate}: a pipeline needs at least one "
            "sample in each micro-batch. Give a larger --batch-size or a smaller --accumulate"
        )
    if config.precision == "tf32" and (device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0)):
        raise UserError(f"--precision=tf32 needs a GPU with Ampere or newer, and this is {device}; fp32 works here")


def refuse_single_samples(config: TrainConfig, world: World, sampler: ShardSampler) -> None:
    """Raise UserError if BatchNorm would be trained on one sample; the same for any world with --sync-batchnorm."""
    apart = 1 if config.sync_batchnorm else world.world_size
    for step in (0, len(sampler) - 1):
        sizes = {len(share(part, rank, apart)) for part in sampler.parts(step) for rank in range(apart)}
        if sampler.least > 1 and 1 in sizes and not config.evaluate_only:
            raise UserError(
                f"BatchNorm cannot be trained on a single sample, but step {step + 1} of each epoch has "
                f"{len(sampler.stretch(step))} in {len(sampler.parts(step)) * apart} parts: choose another --batch-size"
            )


class Step:
    """Trains `model` one step at a time; the gradient is the mean over the global batch on any number of processes.

    Args:
        model: the bare module, on its device; evaluation uses it, too.
        wrapped: the model as the strategy has wrapped it.
        optimizer: of the model's parameters.
    """

    def __init__(self, run: Run, model: nn.Module, wrapped: Wrapped, optimizer: optim.Optimizer) -> None:
        self.config, self.world, self.context, self.device = run.config, run.world, run.context, run.context.device
        self.model, self.wrapped, self.optimizer = model, wrapped, optimizer
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=run.config.precision == "fp16")
        self.ema = None if run.config.ema is None else Ema(model, run.config.ema)
        self.micro_batches = run.config.accumulate
        # While this is true, the weights are in a state neither before nor after a step.  The Trainer resets it.
        self.is_updating = False
        self._skipped_in_a_row = 0
        self._may_undo = run.config.on_nonfinite != "stop_late" or run.config.on_oom == "halve"
        self._buffers = BufferCopies(model)
        self._runs_on_empty_batches = has_sync_batchnorm(model)

    def set_lr(self, lr: float) -> None:
        """Use this learning rate from the next step on."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def run(self, images: Tensor, labels: Tensor, position: ShardSampler) -> StepOutcome:
        """Train one step on this rank's share (maybe empty) of the global batch.

        Args:
            images, labels: as train.data.batches makes them, on the device.
            position: the sampler that chose them, not yet advanced.
        Raises NonFinite, with the model as it was before, if the gradient is not finite and the run is to stop.
        """
        self._seed(position)
        if self._may_undo:
            self._buffers.keep()
        losses = self._compute_gradients(images, labels, position)
        self.wrapped.after_backward()
        self.scaler.unscale_(self.optimizer)
        grad_norm = self.wrapped.clip(self.config.clip_norm or math.inf)
        skipped = None
        # With fp16 the host has to know in any case: the scaler lets no overflow reach the optimizer.
        looks = self.config.on_nonfinite != "stop_late" or self.scaler.is_enabled()
        if looks and not math.isfinite(float(grad_norm)):
            skipped = self._refuse_gradient(images, losses, position)
        self.is_updating = skipped is None
        scale = self.scaler.get_scale()
        self.scaler.update()
        if self.scaler.get_scale() != scale:
            self.wrapped.rescale(self.scaler.get_scale() / scale)
        if skipped is None:
            self.optimizer.step()
            self._skipped_in_a_row = 0
            if self.ema is not None:
                self.ema.update()
        self.optimizer.zero_grad(set_to_none=True)
        return StepOutcome(losses.sum(dtype=torch.float64), grad_norm, skipped)

    def evaluated_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the weights to evaluate and export: the average, if there is one."""
        return nullcontext() if self.ema is None else self.ema.in_place_of_weights()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the model, the optimizer, the scaler and the average.  All ranks call it together."""
        if self.wrapped.local_part is not None:
            from train.checkpoints.sharded import shards  # here, as torch takes a second to import what it needs

            if self.context.ranks_have_own_buffers:  # any rank may write them, and rank 0's are evaluated
                broadcast_from_rank_0([*self.model.buffers()], self.context.group)
            return {"shards": shards(self.model, self.optimizer), "scaler": self.scaler.state_dict()}
        return {
            **({} if self.ema is None else {"ema": self.ema.state_dict()}),
            "model": self.wrapped.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what state_dict() returned, except shards (train.checkpoints.sharded); other keys are ignored."""
        self.load_weights(state)
        if self.wrapped.local_part is None:
            self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])

    def load_weights(self, state: dict[str, Any]) -> None:
        """Load of what state_dict() returned only the model and the average of its weights, except shards."""
        if self.wrapped.local_part is None:
            self.model.load_state_dict(state["model"])
        if self.ema is not None:
            self.ema.load_state_dict(state["ema"])

    def _compute_gradients(self, images: Tensor, labels: Tensor, position: ShardSampler) -> Tensor:
        """Run forward and backward of all micro-batches; return the loss of each sample of this rank, detached."""
        # The wrapper takes the mean over ranks; this factor turns a rank's sum over its samples into the global mean.
        per_sample = self.world.world_size / len(position.stretch())
        losses = []
        sizes = self._sizes(position)
        for index, (x, y) in enumerate(zip(images.split(sizes), labels.split(sizes), strict=True), start=1):
            with self.wrapped.no_sync() if index < len(sizes) else nullcontext():
                of_samples = self._losses(x, y)
                self.scaler.scale(nonfinite.marked(of_samples.sum() * per_sample)).backward()
            losses.append(of_samples.detach()[: len(y)])
        return torch.cat(losses)

    def _sizes(self, position: ShardSampler) -> list[int]:
        """Return how many samples of each micro-batch this rank has."""
        return [len(part) for part in position.shares()]

    def _refuse_gradient(self, images: Tensor, losses: Tensor, position: ShardSampler) -> str | None:
        """Return why the step is skipped; None if --on-nonfinite=stop_late is to find the loss.  A collective."""
        why = nonfinite.found(self.world, position, images, losses)
        if why is None and self.scaler.is_enabled():
            return f"the gradient overflowed fp16 at a loss scale of {self.scaler.get_scale():g}"
        if self.config.on_nonfinite == "stop_late":
            return None
        advice = "Try" if why is None else "Check these samples, or try"
        why = why or "the gradient is not finite, although all losses are finite"
        self._buffers.restore()
        self._skipped_in_a_row += 1
        if self.config.on_nonfinite == "skip" and self._skipped_in_a_row < nonfinite.MOST_SKIPPED_IN_A_ROW:
            return why
        self.optimizer.zero_grad(set_to_none=True)
        step = (position.epoch - 1) * num_steps(position.num_samples, position.batch_size) + position.step + 1
        raise nonfinite.NonFinite(
            f"step {step}: {why}, so all ranks stop before the optimizer's step"
            + (f" ({self._skipped_in_a_row} such steps in a row)" if self._skipped_in_a_row > 1 else "")
            + f". {advice} --clip-norm, --precision=fp32, --on-nonfinite=skip or a lower --lr"
        )

    def _losses(self, images: Tensor, labels: Tensor) -> Tensor:
        counts = 1.0
        if len(labels) == 0 and not self._runs_on_empty_batches:
            # Blank images that do not count: gradients of zero, in the same order as on the other ranks.
            images, labels = (part.new_zeros((2, *part.shape[1:])) for part in (images, labels))
            counts = 0.0
        with autocast(self.config.precision, self.device):
            logits = self.wrapped.call(images)
        return counts * losses_of_samples(logits, labels, self.config.label_smoothing)

    def _seed(self, position: ShardSampler) -> None:
        """Make dropout's random numbers a function of the position, so that a resumed run draws the same ones."""
        seed = seed_of(self.config.seed, position.epoch, position.step, self.world.rank)
        # Not torch.manual_seed, which formats a stack trace for each kind of device that is not in use.
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            own = torch.cuda.current_device()
            for index, gpu in enumerate(torch.cuda.default_generators):  # data_parallel draws on all of them
                gpu.manual_seed(seed + (index - own) % len(torch.cuda.default_generators))
