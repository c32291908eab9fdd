"""One optimizer step of a pipeline: torch's schedule runs forward and backward of all micro-batches."""

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage

from train.loop import nonfinite
from train.loop.step import Step, StepResult, Work
from train.strategies import Wrapped
from train.strategies.pipeline import schedule

# Cross entropy leaves out samples with this label.
_NO_LABEL = -100


class PipelineStep(Step):
    """A Step whose ranks are the stages of one model: all read the same samples, and the last computes the losses.

    The function of `run` gets the model's outputs in place of its inputs, and returns the loss of each sample, (n,).
    """

    def add(self, wrapped: Wrapped) -> None:
        super().add(wrapped)
        self.stage: PipelineStage = wrapped.stage
        make = schedule(self.device)
        self._schedule = make(self.stage, self.config.accumulate, loss_fn=self._loss_of_micro_batch)
        self._schedule.scale_grads = False  # the losses are parts of one mean already

    def _gradients(self, work: Work) -> StepResult:
        """Run forward and backward of all micro-batches; the losses are zeros except on the last rank.

        The ranks expect one size, so the last micro-batches are filled up with blank samples that do not count.
        """
        inputs, targets = work.batch
        self._work, self._of_micro_batches = work, list[Tensor]()
        size = -(-self.config.batch_size // self.config.accumulate) * self.config.accumulate
        blanks = size - len(targets)
        inputs = torch.cat([inputs, inputs.new_zeros((blanks, *inputs.shape[1:]))])
        targets = torch.cat([targets, targets.new_full((blanks, *targets.shape[1:]), _NO_LABEL)])
        self._schedule.step(*([inputs] if self.stage.is_first else []), target=targets if self.stage.is_last else None)
        losses = torch.zeros(work.samples, device=self.device)
        if self.stage.is_last:
            losses = torch.cat(self._of_micro_batches)[: work.samples]
        return StepResult(losses, losses.sum(dtype=torch.float64), work.samples, work.samples)

    def _loss_of_micro_batch(self, outputs: Tensor, targets: Tensor) -> Tensor:
        assert self._work.function is not None
        losses: Tensor = self._work.function((outputs, targets))
        self._of_micro_batches.append(losses.detach())
        return nonfinite.marked(losses.sum() / self._work.samples)
