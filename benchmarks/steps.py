"""Steps of each rank in the comparisons of wrappers: each variant trains in turn, and time or memory is measured."""

import itertools
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.measure import in_turns, seconds_per_step
from benchmarks.network import limit_rate
from benchmarks.variants import VARIANTS
from benchmarks.workloads import WORKLOADS, loss_of
from train.strategies.average_after_backward import AverageAfterBackward

# Buckets are rebuilt after the first step; then nothing changes any more.
WARM_UP_STEPS = 4


class Training:
    """One variant: its own copy of the model, the same weights and batches as all others."""

    def __init__(self, workload: str, variant: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.device = device
        self.model = VARIANTS[variant](WORKLOADS[workload].model().to(device, dtype))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=WORKLOADS[workload].lr)
        batches = WORKLOADS[workload].batches(dist.get_rank())
        batches = [(inputs.to(dtype) if inputs.is_floating_point() else inputs, targets) for inputs, targets in batches]
        self.batches = itertools.cycle([(inputs.to(device), targets.to(device)) for inputs, targets in batches])
        self.losses: list[torch.Tensor] = []

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = loss_of(self.model, next(self.batches))
        loss.backward()
        if isinstance(self.model, AverageAfterBackward):
            self.model.average()
        self.optimizer.step()
        self.losses.append(loss.detach())

    def seconds_per_step(self, steps: int) -> float:
        return seconds_per_step(self.step, self._meet, steps)

    def mean_losses(self) -> list[float]:
        """Return the loss of each step so far, mean over the ranks."""
        losses = torch.stack(self.losses)
        dist.all_reduce(losses)
        return [float(loss) / dist.get_world_size() for loss in losses]

    def _meet(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
        dist.barrier()


def time_variants(
    workload: str,
    variants: Sequence[str],
    rounds: int,
    steps: int,
    device: str = "cpu",
    mbit_per_s: float | None = None,
) -> dict[str, Any]:
    """Return the seconds per step of each variant by round, and the mean loss of each step.

    With `mbit_per_s` the nodes send no faster than that.
    """
    if mbit_per_s is not None:
        limit_rate(mbit_per_s)
    runs = {variant: Training(workload, variant, device) for variant in variants}
    for run in runs.values():
        for _ in range(WARM_UP_STEPS):
            run.step()
    seconds = in_turns({variant: partial(_turn, run, steps) for variant, run in runs.items()}, rounds)
    return {"step_seconds": seconds, "losses": {variant: run.mean_losses() for variant, run in runs.items()}}


def losses_in_double(workload: str, variants: Sequence[str], steps: int, device: str = "cpu") -> dict[str, list[float]]:
    """Return the loss of each step by variant, mean over the ranks, in float64.

    In float32, sums in another order drift apart by several per cent within 30 steps of a BatchNorm network.  Even
    native DDP drifts from itself if its buckets have another size.  A difference in float64 means a different
    computation.
    """
    losses = {}
    for variant in variants:
        run = Training(workload, variant, device, torch.float64)
        for _ in range(steps):
            run.step()
        losses[variant] = run.mean_losses()
    return losses


def peak_memory_mib(workload: str, variant: str, steps: int) -> float:
    """Return the most memory that this process ever held, in MiB (VmHWM), after `steps` steps of one variant."""
    run = Training(workload, variant)
    for _ in range(steps):
        run.step()
    [kib] = re.findall(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(kib) / 1024


def _turn(run: Training, steps: int, number: int) -> float:
    return run.seconds_per_step(steps)
