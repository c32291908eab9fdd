"""PowerSGD: matrices of gradients travel as two thin factors; what that leaves out is added to the next gradient."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from train.bucket import Bucket
from train.sync import Sync, Waitable
from train.sync.all_reduce import all_reduce_mean, prescale_of_backend


class PowerSGD(Sync):
    """Rank-`matrix_rank` approximation of the mean over the ranks; the difference is fed back (error feedback).

    Each parameter of two or more dimensions is a matrix of size(0) rows.  It is compressed if the factors have less
    than half of its elements; the others travel in full, with the first factors.  One step of subspace iteration from
    the last step's factor (warm start).  The difference is this rank's own, takes as much memory as the gradient, and
    starts at zero after a resume.  A step in which no rank uses a parameter leaves both for the next one that does.

    Args:
        matrix_rank: columns of the factors.
        full_steps: how many steps at the start are averaged in full, while gradients change fast.
    Source: Vogels et al., PowerSGD, NeurIPS 2019 (arXiv:1905.13727), algorithms 1 and 2.
    """

    def __init__(self, group: dist.ProcessGroup, *, matrix_rank: int = 4, full_steps: int = 10) -> None:
        super().__init__(group)
        self.matrix_rank, self.full_steps = matrix_rank, full_steps
        self._states: weakref.WeakKeyDictionary[Bucket, _State] = weakref.WeakKeyDictionary()

    def prescale(self, device: torch.device) -> float:
        return prescale_of_backend(self.group, device)

    def reduce(self, bucket: Bucket) -> Iterator[Waitable]:
        state = self._states.setdefault(bucket, _State())
        state.steps += 1
        # Narrower types are too coarse to make columns orthogonal in.
        if state.steps <= self.full_steps or bucket.flat.dtype not in (torch.float32, torch.float64):
            yield all_reduce_mean(bucket.flat, self.group)
            return
        if not state.in_full:
            state.in_full = [bucket.used]
            for slot, view in enumerate(bucket.views):
                if _pays(view, self.matrix_rank):
                    state.matrices.append(_Matrix(view, bucket.used[slot], self.matrix_rank, seed=slot))
                else:
                    state.in_full.append(view)
        matrices, in_full = state.matrices, state.in_full

        # The two factors in turn: left = M right, orthonormal; right = Mᵀ left.  Both are means over the ranks.
        lefts = [matrix.add_gradient() @ matrix.right for matrix in matrices]
        message = _packed([*lefts, *in_full])
        yield all_reduce_mean(message, self.group)
        _unpack(message, [*lefts, *in_full])
        if not matrices:
            return
        rights = []
        for matrix, left in zip(matrices, lefts, strict=True):
            _orthonormalize(left)
            rights.append(matrix.error.t() @ left)
        message = _packed(rights)
        yield all_reduce_mean(message, self.group)
        _unpack(message, rights)
        for matrix, left, right in zip(matrices, lefts, rights, strict=True):
            matrix.approximate(left, right, self.prescale(bucket.flat.device))


@dataclass
class _State:
    """What a bucket keeps from step to step."""

    steps: int = 0
    matrices: list[_Matrix] = field(default_factory=list)
    in_full: list[Tensor] = field(default_factory=list)


class _Matrix:
    """A gradient as a matrix, the part of it that was not sent yet, and its right factor.

    Args:
        used: the share of the ranks that use the parameter; that of all ranks when `approximate` is called.
    """

    def __init__(self, view: Tensor, used: Tensor, rank: int, seed: int) -> None:
        self.view, self.used = view, used
        self.error = torch.zeros(view.size(0), view.numel() // view.size(0), dtype=view.dtype, device=view.device)
        # The same on all ranks, without touching the user's random numbers.
        generator = torch.Generator().manual_seed(seed)
        self.start = torch.randn(self.error.size(1), _rank(view, rank), generator=generator).to(view)
        self.right = self.start.clone()

    def add_gradient(self) -> Tensor:
        """This rank's gradient, and what was left out before: it is in `error` until `approximate`."""
        return self.error.add_(self.view.reshape(self.error.shape))

    def approximate(self, left: Tensor, right: Tensor, prescale: float) -> None:
        """The gradient becomes the product of the factors, and the error what that leaves out of this rank's."""
        # What nobody used gets no gradient: the error would be taken away and reach no optimizer.
        used = self.used != 0
        right = torch.where(used, right, 0.0)
        approximation = left @ right.t()
        self.error.sub_(approximation, alpha=prescale)
        self.view.copy_(approximation.view(self.view.shape))
        # After a gradient of zeros, or one that was not finite, nothing would ever be found again.
        self.error.nan_to_num_(0.0, 0.0, 0.0)
        lengths = right.norm(dim=0)
        found = torch.where(lengths.isfinite() & (lengths > 0), right, self.start)
        self.right = torch.where(used, found, self.right)


def _rank(view: Tensor, rank: int) -> int:
    return min(rank, view.size(0), view.numel() // view.size(0))


def _pays(view: Tensor, rank: int) -> bool:
    if view.dim() < 2 or view.numel() == 0:
        return False
    rows, columns = view.size(0), view.numel() // view.size(0)
    return 2 * (rows + columns) * _rank(view, rank) < rows * columns


def _orthonormalize(columns: Tensor) -> None:
    """Gram-Schmidt, twice for each column, in place; a column that is nothing but a sum of others becomes zero."""
    for index, column in enumerate(columns.unbind(1)):
        before = columns[:, :index]
        length = column.norm()
        for _ in range(2):
            column -= before @ (before.t() @ column)
        # What is left of a dependent column is rounding noise, and noise scaled up is no direction.
        left_over = column.norm()
        column.mul_(torch.where(left_over > 1e-5 * length, 1.0 / left_over, 0.0))


def _packed(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _unpack(message: Tensor, tensors: Sequence[Tensor]) -> None:
    parts = message.split([tensor.numel() for tensor in tensors])
    torch._foreach_copy_(list(tensors), [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)])


make = PowerSGD
