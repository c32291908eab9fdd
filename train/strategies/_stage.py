"""A stage of a pipeline that measures how long it computes and how long it waits."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

# The first steps connect the ranks and fill caches; this many more show the share of waiting.
_WARM_UP_STEPS, _MEASURED_STEPS = 5, 50

Mark = float | torch.cuda.Event


def bubble(works: Sequence[float], micro_batches: int) -> float:
    """Return the share of the time in which a stage waits, as the mean over the stages, if messages take no time.

    A step takes as long as one micro-batch through all stages and the other micro-batches through the slowest stage.
    With stages of even work the result is the published (stages - 1) / (micro_batches + stages - 1).

    Args:
        works: of each stage, for one micro-batch, in any unit.
    """
    step = sum(works) + (micro_batches - 1) * max(works)
    return 1.0 - micro_batches * sum(works) / (len(works) * step)


class TimedStage(PipelineStage):
    """torch's PipelineStage with shapes that are known beforehand, so that no rank has to ask for them.

    Args:
        inputs, outputs: a micro-batch before and after the stage, on the meta device.
    """

    def __init__(
        self,
        module: nn.Module,
        index: int,
        num_stages: int,
        device: torch.device,
        inputs: Tensor,
        outputs: Tensor,
        group: dist.ProcessGroup | None,
    ) -> None:
        super().__init__(module, index, num_stages, device, input_args=inputs, output_args=outputs, group=group)
        self.input_shape = inputs.shape
        self._steps = 0
        self._computing: list[tuple[Mark, Mark]] = []
        self._stepping: list[tuple[Mark, Mark]] = []

    @contextmanager
    def timed_step(self) -> Iterator[None]:
        """Measure the step in this block, unless it is one of the first or enough are measured."""
        self._steps += 1
        with self._timed(self._stepping):
            yield

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self._timed(self._computing):
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self._timed(self._computing):
            return super().backward_one_chunk(*args, **kwargs)

    def bubble(self, group: dist.ProcessGroup | None) -> float | None:
        """Return the share of the time in which a rank waited, as the mean over the ranks; None before the sixth step.

        A collective.  The first stage starts a step first and ends it last, so its time is the time of the step.
        """
        if not self._stepping:
            return None
        seconds = torch.tensor([_sum(self._computing), _sum(self._stepping) if self.is_first else 0.0])
        seconds = seconds.to(self.device)
        dist.all_reduce(seconds, group=group)
        computing_s, stepping_s = float(seconds[0]), float(seconds[1])
        return 1.0 - computing_s / (self.num_stages * stepping_s)

    @contextmanager
    def _timed(self, intervals: list[tuple[Mark, Mark]]) -> Iterator[None]:
        measures = _WARM_UP_STEPS < self._steps <= _WARM_UP_STEPS + _MEASURED_STEPS
        start = self._mark() if measures else 0.0
        yield
        if measures:
            intervals.append((start, self._mark()))

    def _mark(self) -> Mark:
        if self.device.type != "cuda":
            return time.perf_counter()
        # The host runs ahead of the GPU, so the GPU's clock counts.
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _sum(intervals: list[tuple[Mark, Mark]]) -> float:
    """Return the seconds of all intervals."""
    total = 0.0
    for start, end in intervals:
        if isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
            end.synchronize()
            total += start.elapsed_time(end) / 1000
        elif isinstance(start, float) and isinstance(end, float):
            total += end - start
    return total
