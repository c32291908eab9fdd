"""A sum over numbered slices whose bits do not depend on which rank has which: one binary tree adds them.

Floating-point sums depend on their order.  So the order is that of the numbers: slices 2n and 2n+1 are added first,
then pairs of pairs, and what has no partner at the end is added from the right.  A rank adds the subtrees that lie
wholly in its range of numbers.  The ranks then exchange pieces of these sums: each finishes the tree for its piece, and
all gather the pieces.  With one subtree a rank these are the bytes of a ring's all-reduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train.collectives.waiting import waiting


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

    def add(self, level: int, number: int, vector: Tensor) -> None:
        """Add the next subtree to the right, and those together that are now whole.  The vector may be overwritten."""
        while number % 2 and self.nodes and self.nodes[-1][:2] == (level, number - 1):
            vector.add_(self.nodes.pop()[2])
            level, number = level + 1, number // 2
        self.nodes.append((level, number, vector))

    def total(self) -> Tensor:
        """Return the sum of all slices.  The vectors may be overwritten."""
        vector = self.nodes.pop()[2]
        while self.nodes:
            vector.add_(self.nodes.pop()[2])
        return vector


@cache
def subtrees(numbers: range) -> list[tuple[int, int]]:
    """Return the (level, number) of the subtrees in which SubtreeSums keeps these slices."""
    sums, nothing = SubtreeSums(), torch.empty(0)
    for number in numbers:
        sums.add(0, number, nothing.clone())
    return [(level, number) for level, number, _ in sums.nodes]


def tree_sum(
    own: SubtreeSums, slices: Sequence[range], size: int, like: Tensor, group: dist.ProcessGroup | None
) -> Tensor:
    """Return the sum of the vectors of all slices, the same bits on any number of ranks.  A collective.

    Args:
        own: what this rank has added up.
        slices: the numbers that each rank of the group has.
        size, like: elements of a vector; a tensor of its type and device.
    """
    if len(slices) == 1:
        return own.total()
    piece, ranks = -(-size // len(slices)), len(slices)
    sent = like.new_empty((ranks, len(own.nodes), piece))
    for at, (_, _, vector) in enumerate(own.nodes):
        sent[:, at] = nn.functional.pad(vector, (0, ranks * piece - size)).view(ranks, piece)
    nodes = [subtrees(numbers) for numbers in slices]
    received = like.new_empty((sum(map(len, nodes)), piece))
    whole = like.new_empty(ranks * piece)
    with waiting("communication"):
        counts = [len(each) * piece for each in nodes]
        dist.all_to_all_single(received.view(-1), sent.view(-1), counts, [len(own.nodes) * piece] * ranks, group=group)
        sums = SubtreeSums()
        for (level, number), vector in zip((node for each in nodes for node in each), received, strict=True):
            sums.add(level, number, vector)
        dist.all_gather_into_tensor(whole, sums.total(), group=group)
    return whole[:size]
