"""One optimizer step of a pipeline: torch's schedule runs forward and backward of all micro-batches."""

from __future__ import annotations

import torch
from torch import Tensor, nn, optim
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

from train.data.sampler import ShardSampler
from train.loop import nonfinite
from train.loop.losses import losses_of_samples
from train.loop.run import Run
from train.loop.step import Step
from train.strategies.pipeline import Pipelined

_SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
# Cross entropy leaves out samples with this label.
_NO_LABEL = -100


class PipelineStep(Step):
    """A Step whose ranks are the stages of one model: all read the same samples, and the last computes the losses."""

    def __init__(self, run: Run, model: nn.Module, wrapped: Pipelined, optimizer: optim.Optimizer) -> None:
        super().__init__(run, model, wrapped, optimizer)
        assert wrapped.stage is not None
        self.stage = wrapped.stage
        self._schedule = _SCHEDULES[run.config.pipeline_schedule](
            self.stage, run.config.accumulate, loss_fn=self._loss_of_micro_batch
        )
        self._schedule.scale_grads = False  # the losses are parts of one mean already
        self._of_micro_batches: list[Tensor] = []
        self._samples = 0

    def _compute_gradients(self, images: Tensor, labels: Tensor, position: ShardSampler) -> Tensor:
        """Run forward and backward of all micro-batches; return the samples' losses, zeros except on the last rank.

        All micro-batches have one size, because the ranks expect it.  So the last ones are filled up with blank samples
        that do not count.
        """
        self._of_micro_batches = []
        self._samples = len(position.stretch())
        size = -(-self.config.batch_size // self.config.accumulate) * self.config.accumulate
        blanks = size - len(labels)
        images = torch.cat([images, images.new_zeros((blanks, *images.shape[1:]))])
        labels = torch.cat([labels, labels.new_full((blanks, *labels.shape[1:]), _NO_LABEL)])
        self._schedule.step(*([images] if self.stage.is_first else []), target=labels if self.stage.is_last else None)
        if not self.stage.is_last:
            return torch.zeros(self._samples, device=self.device)
        return torch.cat(self._of_micro_batches)[: self._samples]

    def _loss_of_micro_batch(self, logits: Tensor, labels: Tensor) -> Tensor:
        losses = losses_of_samples(logits, labels, self.config.label_smoothing)
        self._of_micro_batches.append(losses.detach())
        return nonfinite.marked(losses.sum() / self._samples)
