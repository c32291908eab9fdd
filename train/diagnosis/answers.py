"""Collectives with a known right answer: each rank checks its part of the answer, element by element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

_ELEMENTS = 1000


@dataclass(frozen=True)
class Ranks:
    """The ranks that talk to one another.

    group: NCCL's on CUDA devices, None for the default group.  device: of this rank.  store: of all ranks.
    """

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


CHECKS: dict[str, Callable[[Ranks], bool]] = {
    "all-reduce": all_reduce,
    "broadcast": broadcast,
    "gather": gather,
    "scatter": scatter,
    "all-to-all": all_to_all,
    "barrier": barrier,
}
