"""What the ranks measure together: answers of collectives, times of all-reduce, rates of links, clocks, computing."""

import statistics
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from train.collectives.broadcast import of_all_ranks
from train.world.cgroup import throttled_seconds

_ELEMENTS = 1000
# Bytes of an all-reduce, from one that shows the latency to one that shows the bandwidth.
SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 26)
# A size that would take longer is left out, so that a slow link is found within a minute.
_LONGEST_S = 6.0
# A rank that is stopped for most of each 50 ms is fast in between, so a second of each is timed, and not the best.
_REPEAT_S, _MOST_REPEATS = 1.0, 200
# Messages on a link grow until one takes this long, or is this large.
_LINK_S, _LINK_BYTES = 0.1, 1 << 24
_PINGS = 10


@dataclass(frozen=True)
class Ranks:
    """The ranks that talk to one another.  group: NCCL's on CUDA, None for the default one.  store: of all ranks."""

    rank: int
    world_size: int
    device: torch.device
    group: dist.ProcessGroup | None
    store: dist.Store

    def values(self, rank: int, peer: int = 0) -> Tensor:
        """Return what `rank` has for `peer`: float32 of 1000 elements, each exact, different for each rank."""
        first = 1000 * rank + 7 * peer
        return torch.arange(first, first + _ELEMENTS, dtype=torch.float32, device=self.device)

    def empty(self) -> Tensor:
        return torch.full((_ELEMENTS,), -1.0, device=self.device)


def all_reduce(ranks: Ranks) -> bool:
    values = ranks.values(ranks.rank)
    dist.all_reduce(values, group=ranks.group)
    expected = torch.stack([ranks.values(rank) for rank in range(ranks.world_size)]).double().sum(0)
    return bool(torch.allclose(values.double(), expected, rtol=1e-6, atol=0))


def broadcast(ranks: Ranks) -> bool:
    last = ranks.world_size - 1
    values = ranks.values(last) if ranks.rank == last else ranks.empty()
    dist.broadcast(values, src=last, group=ranks.group)
    return torch.equal(values, ranks.values(last))


def gather(ranks: Ranks) -> bool:
    received = [ranks.empty() for _ in range(ranks.world_size)] if ranks.rank == 0 else None
    dist.gather(ranks.values(ranks.rank), received, dst=0, group=ranks.group)
    return all(torch.equal(values, ranks.values(rank)) for rank, values in enumerate(received or []))


def scatter(ranks: Ranks) -> bool:
    parts = [ranks.values(0, peer) for peer in range(ranks.world_size)] if ranks.rank == 0 else None
    received = ranks.empty()
    dist.scatter(received, parts, src=0, group=ranks.group)
    return torch.equal(received, ranks.values(0, ranks.rank))


def all_to_all(ranks: Ranks) -> bool:
    sent = torch.cat([ranks.values(ranks.rank, peer) for peer in range(ranks.world_size)])
    received = torch.full_like(sent, -1.0)
    dist.all_to_all_single(received, sent, group=ranks.group)
    return torch.equal(received, torch.cat([ranks.values(rank, ranks.rank) for rank in range(ranks.world_size)]))


def barrier(ranks: Ranks) -> bool:
    """Check that no rank leaves before the last has come; the store counts the ranks that have come."""
    ranks.store.add("came-to-barrier", 1)
    dist.barrier(ranks.group, device_ids=[ranks.device.index] if ranks.device.type == "cuda" else None)
    return ranks.store.add("came-to-barrier", 0) == ranks.world_size


CHECKS = (all_reduce, broadcast, gather, scatter, all_to_all, barrier)


@dataclass(frozen=True)
class AllReduce:
    """All-reduce of one size: seconds is the slowest rank's mean; bytes_per_second counts what each rank sends."""

    size: int
    seconds: float
    bytes_per_second: float


@dataclass(frozen=True)
class Clock:
    """Clock of a rank minus the clock of rank 0, in seconds; the true value is at most `error_s` away."""

    rank: int
    offset_s: float
    error_s: float


def measure_all_reduce(ranks: Ranks) -> list[AllReduce]:
    """Return the time of an all-reduce for growing sizes, the same on all ranks.  A collective."""
    measured: list[AllReduce] = []
    for size in SIZES:
        values = torch.zeros(size // 4, device=ranks.device)
        first = max(of_all_ranks(_timed_all_reduce(ranks, values)))  # connects, and tells how many repetitions fit
        repeats = max(1, min(_MOST_REPEATS, int(_REPEAT_S / len(SIZES) / first)))
        seconds = max(of_all_ranks(statistics.mean(_timed_all_reduce(ranks, values) for _ in range(repeats))))
        # A ring sends each byte twice, apart from the part that a rank keeps.
        sent = size * 2 * (ranks.world_size - 1) / ranks.world_size
        measured.append(AllReduce(size, seconds, sent / seconds))
        if seconds * (SIZES[1] / SIZES[0]) * 2 > _LONGEST_S:
            break
    return measured


def measure_links(ranks: Ranks) -> list[float]:
    """Return by rank the bytes per second of messages to the next one, on all ranks.  A collective."""
    if ranks.world_size == 1:
        return []
    rate = 0.0
    source, target = (ranks.rank - 1) % ranks.world_size, (ranks.rank + 1) % ranks.world_size
    for turn in range(3):
        if turn == _turn(ranks.rank, ranks.world_size):
            rate = _send(ranks, target)
        if turn == _turn(source, ranks.world_size):
            _receive(ranks, source)
        dist.barrier()
    return of_all_ranks(rate)


def measure_clocks(ranks: Ranks) -> list[Clock]:
    """Return how far each rank's clock is ahead of rank 0's, known on rank 0 alone.  A collective.

    Source: Cristian, Probabilistic clock synchronization, 1989: the shortest of some round trips bounds the error.
    """
    found = [Clock(0, 0.0, 0.0)] if ranks.rank == 0 else []
    answer = torch.zeros(1, dtype=torch.float64)
    for rank in range(1, ranks.world_size):
        trips = []
        for _ in range(_PINGS):
            if ranks.rank == 0:
                asked = time.time()
                dist.send(answer, dst=rank)
                dist.recv(answer, src=rank)
                answered = time.time()
                trips.append((answered - asked, answer.item() - (asked + answered) / 2))
            elif ranks.rank == rank:
                dist.recv(answer, src=0)
                answer[0] = time.time()
                dist.send(answer, dst=0)
        if ranks.rank == 0:
            shortest, offset = min(trips)
            found.append(Clock(rank, offset, shortest / 2))
    return found


def measure_compute(ranks: Ranks) -> tuple[list[float], list[float]]:
    """Return by rank the seconds of a matrix product, and the part of a second that CPU limits took.  A collective."""
    size = 4096 if ranks.device.type == "cuda" else 256
    matrix = torch.ones(size, size, device=ranks.device) / size
    (matrix @ matrix)[0, 0].item()  # the first one prepares the device
    dist.barrier()
    throttled_s, started, products = throttled_seconds(), time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < _REPEAT_S or not products:
        (matrix @ matrix)[0, 0].item()  # waits for a GPU
        products += 1
    part = (throttled_seconds() - throttled_s) / elapsed
    return of_all_ranks(elapsed / products), of_all_ranks(part)


def _timed_all_reduce(ranks: Ranks, values: torch.Tensor) -> float:
    dist.barrier()
    started = time.perf_counter()
    dist.all_reduce(values, group=ranks.group)
    if ranks.device.type == "cuda":
        torch.cuda.synchronize(ranks.device)
    return time.perf_counter() - started


def _turn(source: int, world_size: int) -> int:
    """Return the turn in which a rank sends: no rank sends and receives at once, and three turns always suffice."""
    return 2 if world_size % 2 and source == world_size - 1 else source % 2


def _send(ranks: Ranks, target: int) -> float:
    """Send growing messages, each answered by one byte; return bytes per second of the largest."""
    size, rate, seconds = 1 << 14, 0.0, 0.0
    _exchange(ranks, target, size)  # not timed: NCCL's first message makes a communicator for the pair
    while size <= _LINK_BYTES and seconds < _LINK_S:
        seconds = _exchange(ranks, target, size)
        rate = size / seconds
        size *= 4
    dist.send(torch.tensor([0]), dst=target)
    return rate


def _exchange(ranks: Ranks, target: int, size: int) -> float:
    dist.send(torch.tensor([size]), dst=target)
    message, answer = (torch.zeros(n, dtype=torch.uint8, device=ranks.device) for n in (size, 1))
    started = time.perf_counter()
    dist.send(message, dst=target, group=ranks.group)
    dist.recv(answer, src=target, group=ranks.group)
    answer.item()
    return time.perf_counter() - started


def _receive(ranks: Ranks, source: int) -> None:
    size = torch.zeros(1, dtype=torch.int64)
    while True:
        dist.recv(size, src=source)
        if size.item() == 0:
            return
        message = torch.empty(int(size.item()), dtype=torch.uint8, device=ranks.device)
        dist.recv(message, src=source, group=ranks.group)
        dist.send(message[:1], dst=source, group=ranks.group)
