"""A sum over numbered slices whose bits do not depend on which rank has which: one binary tree adds them.

Floating-point sums depend on their order.  So the order is that of the numbers: slices 2n and 2n+1 are added first,
then pairs of pairs, and what has no partner at the end is added from the right.  A rank adds the subtrees that lie
wholly in its range of numbers.  The ranks then exchange pieces of these sums: each finishes the tree for its piece, and
all gather the pieces.  With one subtree a rank these are the bytes of a ring's all-reduce.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from train.collectives.waiting import waiting

# Block[n][rank]: of the rank's n-th tensor of those that are added together.
Block = tuple[list[Tensor], ...]
# So much of a sum is on its way at a time: enough for a network's speed, and little beside the gradients.
_CHUNK_BYTES = 25 * 2**20


class SubtreeSums:
    """The sums of whole subtrees: a vector for each (level, number), in order; a slice has level 0.

    >>> sums = SubtreeSums()
    >>> for number in range(3, 8):
    ...     sums.add(0, number, torch.tensor([float(number)]))
    >>> [(level, number, vector.item()) for level, number, vector in sums.nodes]
    [(0, 3, 3.0), (2, 1, 22.0)]
    """

    def __init__(self) -> None:
        self.nodes: list[tuple[int, int, Tensor]] = []

    def has_sibling(self, level: int, number: int) -> bool:
        """Return True if the subtree is the right half of a larger one whose left half is the last node."""
        return number % 2 == 1 and bool(self.nodes) and self.nodes[-1][:2] == (level, number - 1)

    def add(self, level: int, number: int, vector: Tensor) -> None:
        """Add the next subtree to the right, and those together that are now whole, in the memory of the left one."""
        while self.has_sibling(level, number):
            vector = self.nodes.pop()[2].add_(vector)
            level, number = level + 1, number // 2
        self.nodes.append((level, number, vector))

    def total(self) -> Tensor:
        """Return the sum of all slices, in the memory of the first subtree."""
        vector = self.nodes.pop()[2]
        while self.nodes:
            vector = self.nodes.pop()[2].add_(vector)
        return vector


@cache
def subtrees(numbers: range) -> tuple[list[tuple[int, int]], int]:
    """Return the (level, number) of the subtrees that are left of these slices, and the vectors that TreeSum needs."""
    sums, most = SubtreeSums(), 0
    for number in numbers:
        most = max(most, len(sums.nodes) + (not sums.has_sibling(0, number)))
        sums.add(0, number, torch.empty(0))
    return [(level, number) for level, number, _ in sums.nodes], most


class Memory(Protocol):
    """Memory that the ranks of one host share; each allocates the same tensors in the same order.

    train.cpu.shared_memory.SharedMemory.
    """

    def allocate(self, numel: int, dtype: torch.dtype) -> Tensor: ...

    def renew(self, flat: Tensor) -> Tensor: ...

    def average(self, flat: Tensor) -> Any: ...

    def replace(self, flats: Sequence[Tensor], combine: Callable[[Block], Tensor]) -> Any: ...


class TreeSum:
    """Adds vectors of one size, one for each slice, over slices and ranks.  Its memory stays for the next step.

    size, like: elements of a vector; a tensor of its type and device.
    shared: memory of the host, if all ranks are on one; otherwise the backend's messages are used.
    """

    def __init__(self, size: int, like: Tensor, group: dist.ProcessGroup | None, shared: Memory | None) -> None:
        self._size, self._like, self._group, self._shared = size, like, group, shared
        self._rows: list[Tensor] = []

    def begin(self, slices: Sequence[range]) -> Tensor:
        """Start a sum of slices with these numbers, a range for each rank; return the total's memory.  A collective."""
        self._slices, self._sums = slices, SubtreeSums()
        padded = -(-self._size // len(slices)) * len(slices)
        while len(self._rows) < max(subtrees(numbers)[1] for numbers in slices):
            if self._shared is None:
                self._rows.append(self._like.new_zeros(padded))
            else:
                self._rows.append(self._shared.allocate(padded, self._like.dtype))
        return self._rows[0]

    def renew(self) -> None:
        """Leave the memory of the last total to somebody else."""
        first = self._rows[0]
        self._rows[0] = torch.zeros_like(first) if self._shared is None else self._shared.renew(first)

    def add(self, number: int, parts: Sequence[Tensor]) -> None:
        """Add the vector of a slice of this rank, the parts one after the other; in the order of the numbers."""
        parts = [part.reshape(-1).to(self._like.dtype) for part in parts]
        if self._sums.has_sibling(0, number):  # so it needs no further row
            row = self._sums.nodes.pop()[2]
            torch._foreach_add_(row[: self._size].split([part.numel() for part in parts]), parts)
            self._sums.add(1, number // 2, row)
        else:
            row = self._rows[len(self._sums.nodes)]
            torch.cat(parts, out=row[: self._size])
            self._sums.add(0, number, row)

    def total(self) -> Tensor:
        """Return the sum over all slices, the same bits on any number of ranks.  A collective."""
        nodes = [subtrees(numbers)[0] for numbers in self._slices]
        if len(nodes) == 1:
            self._sums.total()
        elif self._shared is not None:
            flats = self._rows[: max(map(len, nodes))]
            with waiting("communication"):
                self._shared.replace(flats, lambda parts: _add_up(nodes, parts)).wait()
        else:
            with waiting("communication"):
                self._exchange(nodes)
        return self._rows[0][: self._size]

    def _exchange(self, nodes: list[list[tuple[int, int]]]) -> None:
        ranks, first = len(nodes), self._rows[0]
        own = len(nodes[dist.get_rank(self._group)])
        chunk = max(1, _CHUNK_BYTES // first.itemsize // ranks) * ranks
        for start in range(0, len(first), chunk):
            here = slice(start, min(start + chunk, len(first)))
            piece = (here.stop - here.start) // ranks
            parts = list[list[Tensor]]()
            for index in range(max(map(len, nodes))):
                counts = [piece * (index < len(each)) for each in nodes]
                received = self._like.new_empty(sum(counts))
                sent = self._rows[index][here] if index < own else self._like.new_empty(0)
                own_counts = [piece * (index < own)] * ranks
                dist.all_to_all_single(received, sent, counts, own_counts, group=self._group)
                parts.append(list(received.split(counts)))
            dist.all_gather_into_tensor(first[here], _add_up(nodes, tuple(parts)), group=self._group)


def _add_up(nodes: list[list[tuple[int, int]]], parts: Block) -> Tensor:
    """Return the sum of all subtrees, in the memory of the first."""
    sums = SubtreeSums()
    for rank, each in enumerate(nodes):
        for index, (level, number) in enumerate(each):
            sums.add(level, number, parts[index][rank])
    return sums.total()
