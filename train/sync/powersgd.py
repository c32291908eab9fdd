"""PowerSGD: matrices of gradients travel as two thin factors; what they leave out is added to the next gradient."""

import weakref
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from train.sync import Payload, Sync, Waitable
from train.sync.all_reduce import all_reduce_mean, prescale_of_backend
from train.world.placement import processor, refuse_unlike


class PowerSGD(Sync):
    """Rank-`matrix_rank` approximation of the mean over the ranks; the difference is fed back (error feedback).

    Each parameter of two or more dimensions is a matrix of size(0) rows.  It is compressed if the factors have less
    than half of its elements; others travel in full, with the first factors.  Each step is one subspace iteration from
    the last step's factor (warm start).  Each rank has its own difference, which takes as much memory as the gradient
    and starts at zero after a resume.  If no rank uses a parameter in a step, factor and difference do not change.
    Raises SharedError if ranks compute on unlike processors: each multiplies the factors, and last bits would differ.

    matrix_rank: columns of the factors.
    full_steps: how many steps at the start are averaged in full, while gradients change fast.
    Source: Vogels et al., PowerSGD, NeurIPS 2019 (arXiv:1905.13727), algorithms 1 and 2.
    """

    def __init__(self, group: dist.ProcessGroup, *, matrix_rank: int = 4, full_steps: int = 10) -> None:
        super().__init__(group)
        self.matrix_rank, self.full_steps = matrix_rank, full_steps
        self._compared: set[torch.device] = set()
        self._steps: weakref.WeakKeyDictionary[Payload, int] = weakref.WeakKeyDictionary()
        # By the slot of the parameter.
        self._matrices: weakref.WeakKeyDictionary[Payload, dict[int, _Matrix]] = weakref.WeakKeyDictionary()

    def prescale(self, dtype: torch.dtype, device: torch.device) -> float:
        return prescale_of_backend(self.group, dtype, device)

    def allocate(self, numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        if device not in self._compared:
            self._compared.add(device)
            reason = "PowerSGD would let their weights drift apart. Use --sync=bf16 or --sync=all_reduce"
            refuse_unlike(processor(device), self.group, reason)
        return super().allocate(numel, dtype, device)

    def rescale(self, factor: float) -> None:
        for matrices in self._matrices.values():
            for matrix in matrices.values():
                matrix.error.mul_(factor)

    def reduce(self, payload: Payload) -> Iterator[Waitable]:
        step = self._steps[payload] = self._steps.get(payload, 0) + 1
        # Narrower types are too coarse for orthogonal columns.
        if step <= self.full_steps or payload.flat.dtype not in (torch.float32, torch.float64):
            yield all_reduce_mean(payload.flat, self.group)
            return
        if step == self.full_steps + 1:
            compressed = [(slot, view) for slot, view in enumerate(payload.views) if _pays(view, self.matrix_rank)]
            self._matrices[payload] = {slot: _Matrix(view, self.matrix_rank, seed=slot) for slot, view in compressed}
        matrices = self._matrices[payload]
        in_full = [payload.used, *(view for slot, view in enumerate(payload.views) if slot not in matrices)]

        # The two factors in turn: left = M right, orthonormal; right = Mᵀ left.  Both are means over the ranks.
        # Until `approximate`, `error` is this rank's gradient plus what was left out before.
        errors = {slot: matrix.error for slot, matrix in matrices.items()}
        lefts = [e.add_(payload.views[slot].reshape(e.shape)) @ matrices[slot].right for slot, e in errors.items()]
        message = _packed([*lefts, *in_full])
        yield all_reduce_mean(message, self.group)
        _unpack(message, [*lefts, *in_full])
        if not matrices:
            return
        lefts = _orthonormal(lefts)
        rights = [matrix.error.t() @ left for matrix, left in zip(matrices.values(), lefts, strict=True)]
        message = _packed(rights)
        yield all_reduce_mean(message, self.group)
        _unpack(message, rights)
        prescale = self.prescale(payload.flat.dtype, payload.flat.device)
        for (slot, matrix), left, right in zip(matrices.items(), lefts, rights, strict=True):
            view = payload.views[slot]
            view.copy_(matrix.approximate(left, right, payload.used[slot], prescale).view(view.shape))


class _Matrix:
    """The part of a gradient, as a matrix, that was not sent yet, and its right factor."""

    def __init__(self, view: Tensor, rank: int, seed: int) -> None:
        self.error = torch.zeros(view.size(0), view.numel() // view.size(0), dtype=view.dtype, device=view.device)
        # The same on all ranks, without touching the user's random numbers.
        generator = torch.Generator().manual_seed(seed)
        self.start = torch.randn(self.error.size(1), _rank(view, rank), generator=generator).to(view)
        self.right = self.start.clone()

    def approximate(self, left: Tensor, right: Tensor, share: Tensor, prescale: float) -> Tensor:
        """Return the product of the factors, (rows, columns); the error is then what it leaves out of this rank's.

        share: the part of the ranks that used the parameter.
        """
        # A parameter that no rank used gets no gradient, so a part taken from the error would reach no optimizer.
        used = share != 0
        right = torch.where(used, right, 0.0)
        approximation = left @ right.t()
        self.error.sub_(approximation, alpha=prescale)
        # After a gradient of zeros, or one that was not finite, no later step would find a direction again.
        self.error.nan_to_num_(0.0, 0.0, 0.0)
        lengths = right.norm(dim=0)
        found = torch.where(lengths.isfinite() & (lengths > 0), right, self.start)
        self.right = torch.where(used, found, self.right)
        return approximation


def _rank(view: Tensor, rank: int) -> int:
    return min(rank, view.size(0), view.numel() // view.size(0))


def _pays(view: Tensor, rank: int) -> bool:
    if view.dim() < 2 or view.numel() == 0:
        return False
    rows, columns = view.size(0), view.numel() // view.size(0)
    return 2 * (rows + columns) * _rank(view, rank) < rows * columns


def _orthonormal(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Return orthonormal columns that span the columns of each matrix, and more if these are dependent.

    One call does all matrices of equal shape.  More columns are right, too: the second factor of a direction that the
    gradient does not have is zero.
    """
    same_shape: dict[torch.Size, list[int]] = {}
    for index, matrix in enumerate(matrices):
        same_shape.setdefault(matrix.shape, []).append(index)
    results = list(matrices)
    for indices in same_shape.values():
        orthonormal = torch.linalg.qr(torch.stack([matrices[index] for index in indices])).Q
        for index, result in zip(indices, orthonormal, strict=True):
            results[index] = result
    return results


def _packed(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _unpack(message: Tensor, tensors: Sequence[Tensor]) -> None:
    parts = message.split([tensor.numel() for tensor in tensors])
    torch._foreach_copy_(list(tensors), [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)])


make = PowerSGD
