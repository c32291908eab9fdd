"""A Step that survives running out of memory: it repeats the step in micro-batches of half the size."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim

from train.data.sampler import ShardSampler
from train.data.shard import share
from train.errors import SharedError
from train.loop.losses import StepOutcome, losses_of_samples
from train.loop.run import Run
from train.loop.step import Step
from train.strategies import Wrapped, autocast

# How torch's allocator and oneDNN report lack of memory on a CPU.  On a GPU torch's allocator has a separate
# exception; libraries that allocate by themselves do not raise it.
_OUT_OF_MEMORY = re.compile(
    "can't allocate memory|not enough memory|std::bad_alloc"
    # oneDNN has no error for lack of memory alone; errors about a primitive descriptor have another cause.
    "|could not create a memory|could not (?:create|execute) a primitive(?! descriptor)"
    "|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    # cuDNN, after each of its algorithms was refused the memory that it needs.
    "|unable to find an engine to execute this computation"
)


def is_out_of_memory(error: Exception) -> bool:
    """Return True if the error is about lack of memory, on the host or on a GPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None


class HalvingStep(Step):
    """A Step in which all ranks halve their micro-batches and repeat the step when one of them is out of memory.

    A rank that failed cannot take part in what the others send during backward.  So all ranks first add up their own
    gradients, then agree that none has failed, and average last: communication is not hidden behind computing.
    Raises SharedError for a model whose layers send messages.
    """

    def __init__(self, run: Run, model: nn.Module, wrapped: Wrapped, optimizer: optim.Optimizer) -> None:
        super().__init__(run, model, wrapped, optimizer)
        self._repeated: str | None = None
        if self._runs_on_empty_batches:
            raise SharedError(
                "--on-oom=halve cannot be used with synchronised BatchNorm: other ranks would wait for the one that "
                "is out of memory. Add --no-sync-batchnorm, or leave out --on-oom"
            )

    def run(self, images: Tensor, labels: Tensor, position: ShardSampler) -> StepOutcome:
        """Train one step as Step.run() does, in as many attempts as it takes."""
        self._repeated = None
        return replace(super().run(images, labels, position), repeated=self._repeated)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of Step.state_dict(), and into how many micro-batches a step is cut now."""
        return {**super().state_dict(), "micro_batches": self.micro_batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with micro-batches that have fitted in memory."""
        super().load_state_dict(state)
        self.micro_batches = max(self.micro_batches, state.get("micro_batches", 1))

    def _compute_gradients(self, images: Tensor, labels: Tensor, position: ShardSampler) -> Tensor:
        while True:
            losses = self._gradients_of_this_rank(images, labels, position)
            failed = self._ranks_without(losses)
            if losses is not None and not failed:
                if self.world.world_size > 1:
                    self._average(images, labels)
                return losses
            self._halve(failed, position)
            del losses
            self.optimizer.zero_grad(set_to_none=True)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            self._buffers.restore()
            self._seed(position)

    def _gradients_of_this_rank(self, images: Tensor, labels: Tensor, position: ShardSampler) -> Tensor | None:
        """Return the losses, or None if memory ran out; all that the attempt has allocated is free again then."""
        try:
            with self.wrapped.no_sync():
                return super()._compute_gradients(images, labels, position)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return None

    def _ranks_without(self, losses: Tensor | None) -> list[int]:
        """Return the ranks that are out of memory.  A collective."""
        failed = torch.zeros(self.world.world_size)
        failed[self.world.rank] = losses is None
        dist.all_reduce(failed)
        return failed.nonzero().flatten().tolist()

    def _sizes(self, position: ShardSampler) -> list[int]:
        sizes = []
        for part in position.shares():
            pieces = max(1, min(self.micro_batches // self.config.accumulate, len(part) // position.least))
            sizes += [len(share(part, piece, pieces)) for piece in range(pieces)]
        return sizes

    def _halve(self, failed: list[int], position: ShardSampler) -> None:
        largest, before = len(share(position.parts()[0], 0, self.world.world_size)), self.micro_batches
        pieces = before // self.config.accumulate
        who = f"rank {', '.join(map(str, failed))} ran out of memory"
        if pieces >= largest // position.least:
            raise SharedError(f"{who} with the fewest samples in a micro-batch: take a smaller model or more memory")
        self.micro_batches = 2 * before
        self._repeated = (
            f"{who}; from now on all ranks cut a step into {self.micro_batches} micro-batches (before: {before}), "
            f"each of at most {-(-largest // (2 * pieces))} samples. The global batch stays the same, and the "
            "step was repeated"
        )

    def _average(self, images: Tensor, labels: Tensor) -> None:
        """Average the gradients over the ranks, in the backward of a blank batch that does not count."""
        blank, no_labels = (part.new_zeros((2, *part.shape[1:])) for part in (images, labels))
        self.model.eval()  # no running statistics, no dropout
        with autocast(self.config.precision, self.device):
            logits = self.wrapped.call(blank)
        (0.0 * losses_of_samples(logits, no_labels).sum()).backward()
        self.model.train()
