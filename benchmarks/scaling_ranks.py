"""Measure on each rank for the cost model: all-reduces on limited links, compute without a network, whole steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.network import limit_rate
from benchmarks.workloads import WORKLOADS, loss_of
from train.ddp.wrapper import CustomDDP
from train.sync import MakeSync, Payload, Sync, Waitable
from train.sync.all_reduce import AllReduce

_WARM_UP_STEPS = 2
# All-reduces of one size follow each other for about this long, so that the barrier before them hardly counts.
_ALL_REDUCES_S = 0.3
_COMPUTE_S = 0.5


class Silent(Sync):
    """Sync that averages nothing, but records when each bucket is full and how large it is."""

    def __init__(self, group: dist.ProcessGroup, full: list[tuple[float, int]]) -> None:
        super().__init__(group)
        self.full = full

    def reduce(self, payload: Payload) -> Iterator[Waitable]:
        self.full.append((time.perf_counter(), payload.flat.numel() * payload.flat.element_size()))
        yield from ()


def measure_link(rates: Sequence[float], sizes_bytes: Sequence[int], repeats: int) -> dict[str, Any]:
    """Measure all-reduces by rate (Mbit/s) and size, and how much they slow down compute at the highest rate."""
    rows = []
    for rate in rates:
        limit_rate(rate)
        for size in sizes_bytes:
            flat = torch.ones(size // 4)
            number = max(1, int(_ALL_REDUCES_S / _seconds(partial(dist.all_reduce, flat))))
            in_a_row = partial(_all_reduce, flat, number)
            seconds = median(_seconds(in_a_row) for _ in range(repeats)) / number
            rows.append({"mbit_per_s": rate, "bytes": size, "seconds": seconds})
    limit_rate(max(rates))
    return {"all_reduces": rows, "slowdown": median(_slowdown_of_compute(max(sizes_bytes)) for _ in range(repeats))}


def measure_steps(workload: str, rates: Sequence[float], steps: int) -> dict[str, Any]:
    """Measure the schedule of a step without a network, and the seconds of a step at each rate (Mbit/s), as medians."""
    schedule = record_schedule(workload, steps)
    take_step = _training(workload, AllReduce)
    rows = []
    for rate in rates:
        limit_rate(rate)
        for _ in range(_WARM_UP_STEPS):
            take_step()
        rows.append({"mbit_per_s": rate, "seconds": median(_seconds(take_step) for _ in range(steps))})
    return {"schedule": schedule, "steps": rows}


def record_schedule(workload: str, steps: int) -> dict[str, Any]:
    """Return the fields of cost_model.Schedule; each time is the last rank's, as the median over `steps`."""
    full: list[tuple[float, int]] = []
    backward_end: list[float] = []
    take_step = _training(workload, partial(Silent, full=full), lambda: backward_end.append(time.perf_counter()))
    rows = []
    for step in range(_WARM_UP_STEPS + steps):
        full.clear()
        dist.barrier()
        started = time.perf_counter()
        take_step()
        moments = torch.tensor([*(at for at, _ in full), backward_end[-1], time.perf_counter()], dtype=torch.float64)
        moments -= started
        dist.all_reduce(moments, dist.ReduceOp.MAX)
        if step >= _WARM_UP_STEPS:
            rows.append(moments)
    *bucket_full_s, backward_end_s, step_s = torch.stack(rows).median(dim=0).values.tolist()
    return {
        "bucket_bytes": [size for _, size in full],
        "bucket_full_s": bucket_full_s,
        "backward_end_s": backward_end_s,
        "step_s": step_s,
    }


def _training(workload: str, sync: MakeSync, after_backward: Callable[[], None] = lambda: None) -> Callable[[], None]:
    """Return a function that takes one step.  Buffers are not sent: the cost model is about gradients."""
    model = CustomDDP(WORKLOADS[workload].model(), sync=sync, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=WORKLOADS[workload].lr)
    [batch, *_] = WORKLOADS[workload].batches(dist.get_rank())

    def take_step() -> None:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        after_backward()
        optimizer.step()

    return take_step


def _all_reduce(flat: torch.Tensor, times: int) -> None:
    for _ in range(times):
        dist.all_reduce(flat)


def _slowdown_of_compute(num_bytes: int) -> float:
    """Return the time of a computation while all-reduces are under way / its time alone."""
    matrix = torch.eye(256)
    flat = torch.ones(num_bytes // 4)

    def compute(times: int) -> float:
        started = time.perf_counter()
        for _ in range(times):
            matrix @ matrix
        return time.perf_counter() - started

    times = int(_COMPUTE_S / compute(200) * 200)
    # All-reduces for twice as long as the computation takes alone, so that they outlast it.
    number = math.ceil(2 * _COMPUTE_S / _seconds(partial(dist.all_reduce, flat)))
    dist.barrier()
    alone = compute(times)
    dist.barrier()
    under_way = [dist.all_reduce(flat, async_op=True) for _ in range(number)]
    beside = compute(times)
    outlasted = not under_way[-1].is_completed()
    for work in under_way:
        work.wait()
    if not outlasted:
        raise RuntimeError("the all-reduces ended before the computation beside them: is the machine busy?")
    return beside / alone


def _seconds(action: Callable[[], Any]) -> float:
    """Return the seconds from when all ranks begin until the last is done."""
    dist.barrier()
    started = time.perf_counter()
    action()
    seconds = torch.tensor(time.perf_counter() - started, dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)
