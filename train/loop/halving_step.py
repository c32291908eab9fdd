"""A Step that survives running out of memory: it repeats the step in micro-batches of half the size."""

import re
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from train.config import setting
from train.data.batches import pieces
from train.data.sampler import ShardSampler
from train.data.shard import share
from train.errors import SharedError
from train.loop.step import Step, StepResult, Work, no_sync
from train.strategies import Wrapped

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
    """

    def add(self, wrapped: Wrapped) -> None:
        """Let steps train one more model.  Raises SharedError if its layers send messages."""
        super().add(wrapped)
        if self._runs_on_empty_batches:
            raise SharedError(
                f"{setting('on_oom', 'halve')} cannot be used with synchronised BatchNorm: other ranks would wait "
                f"for the one that is out of memory. Add {setting('sync_batchnorm', False)}, or leave "
                f"out {setting('on_oom')}"
            )

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"micro_batches": self.micro_batches}

    def load_state_dict(self, state: dict[str, Any]) -> list[str]:
        self.micro_batches = max(self.micro_batches, state.get("micro_batches", 1))
        return super().load_state_dict(state)

    def _gradients(self, work: Work) -> StepResult:
        if not work.split:
            raise SharedError(
                f"split=False cannot be used with {setting('on_oom', 'halve')}, which has to split a batch"
            )
        of_device = torch.cuda.default_generators if self.device.type == "cuda" else ()
        before = [(generator, generator.get_state()) for generator in (torch.default_generator, *of_device)]
        repeated = None
        while True:
            losses = self._gradients_of_this_rank(work)
            flags = torch.zeros(self.world.world_size)
            flags[self.world.rank] = losses is None
            dist.all_reduce(flags)
            failed = flags.nonzero().flatten().tolist()
            if losses is not None and not failed:
                if self.world.world_size > 1:
                    self._average(work)
                return replace(losses, repeated=repeated)
            repeated = self._halve(failed, work.position)
            del losses
            work.optimizer.zero_grad(set_to_none=True)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            self._buffers.restore()
            for generator, state in before:
                generator.set_state(state)

    def _gradients_of_this_rank(self, work: Work) -> StepResult | None:
        """Return the losses, or None if memory ran out; all that the attempt has allocated is free again then."""
        try:
            with no_sync(self.models):
                return super()._gradients(work)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return None

    def _sizes(self, position: ShardSampler) -> list[int]:
        sizes = []
        for part in position.shares():
            number = max(1, min(self.micro_batches // position.micro_batches, len(part) // position.least))
            sizes += [len(share(part, piece, number)) for piece in range(number)]
        return sizes

    def _halve(self, failed: list[int], position: ShardSampler) -> str:
        """Halve the micro-batches, and return in words that some ranks have failed and what follows."""
        largest, before = len(share(position.parts()[0], 0, self.world.world_size)), self.micro_batches
        number = before // position.micro_batches
        who = f"rank {', '.join(map(str, failed))} ran out of memory"
        if number >= largest // position.least:
            raise SharedError(f"{who} with the fewest samples in a micro-batch: take a smaller model or more memory")
        self.micro_batches = 2 * before
        return (
            f"{who}; from now on all ranks cut a step into {self.micro_batches} micro-batches (before: {before}), "
            f"each of at most {-(-largest // (2 * number))} samples. The global batch stays the same, and the "
            "step was repeated"
        )

    def _average(self, work: Work) -> None:
        """Average the gradients over the ranks, in the backward of samples that do not count."""
        training = [part for wrapped in self.models for part in wrapped.module.modules() if part.training]
        for part in training:
            part.training = False  # no running statistics, no dropout
        blank = pieces(work.batch, [0, sum(self._sizes(work.position))])[0]
        self._loss(work, blank, 0)[0].backward()
        for part in training:
            part.training = True
