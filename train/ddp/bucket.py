"""A bucket: the gradients of some parameters, one after the other in one flat tensor, with p.grad as views of it."""

from collections.abc import Sequence
from itertools import accumulate
from operator import and_

import torch
from torch import Tensor, nn

from train.ddp.gradient_hooks import MOVED_AT_ONCE_BYTES, num_holders
from train.errors import UserError
from train.sync import Payload, Sync

# Each gradient begins at a multiple of this, because CUDA's kernels for many tensors then read four numbers at once.
_ALIGNMENT_BYTES = 16
_NAMES_SHOWN = 5


class Bucket:
    """Gradients of `params`, and one number for each of them: the share of the ranks that used it.

    The numbers travel with the gradients, and tell without a further collective which parameters no rank has used.
    names: of the parameters, for messages.
    times: how often the gradient of each parameter is completed in one backward (more than once only under
        reentrant checkpointing).
    """

    def __init__(self, params: Sequence[nn.Parameter], names: Sequence[str], times: Sequence[int], sync: Sync) -> None:
        self.params, self.names, self.times, self.sync = list(params), list(names), list(times), sync
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        self.names_in_words = f"{', '.join(names[:_NAMES_SHOWN])}{more}"
        aligned = _ALIGNMENT_BYTES // params[0].dtype.itemsize
        sizes = [-(-param.numel() // aligned) * aligned for param in params]
        self._starts = [0, *accumulate(sizes)]
        flat = sync.allocate(self._starts[-1] + len(params), params[0].dtype, params[0].device)
        self._lay_out(flat)
        self._prescale = sync.prescale(flat.dtype, flat.device)
        self._is_large = [param.nbytes > MOVED_AT_ONCE_BYTES for param in params]
        self._small = [slot for slot, large in enumerate(self._is_large) if not large]
        self.begin()

    def _lay_out(self, flat: Tensor) -> None:
        *starts, end = self._starts
        self.views = [
            _view_like(flat[start : start + param.numel()], param)
            for start, param in zip(starts, self.params, strict=True)
        ]
        self.payload = Payload(flat, self.views, used=flat[end:])
        self._nobody_else = num_holders(flat, self.views)

    def _is_held(self) -> bool:
        """Return True if somebody still holds an average of the last backward, which is no longer the gradient."""
        holders = num_holders(self.payload.flat, self.views)
        if holders == self._nobody_else:
            return False
        # What is still p.grad changes in place, as without CustomDDP.
        apart = [param.grad is not view for param, view in zip(self.params, self.views, strict=True)]
        more = [now > alone for now, alone in zip(holders, self._nobody_else, strict=True)]
        return any(apart) and (more[0] or any(map(and_, more[1:], [*apart, *apart])))

    def begin(self) -> None:
        """Expect the gradients of one backward, without the parameters that were frozen meanwhile."""
        if self._is_held():
            self._lay_out(self.sync.renew(self.payload.flat))
        self._awaited = {slot for slot, param in enumerate(self.params) if param.requires_grad}
        self._times_left = list(self.times)
        self._absent: list[int] = []

    @property
    def num_awaited(self) -> int:
        return len(self._awaited)

    def arrive(self, slot: int) -> None:
        """Count the arrival of a gradient, or of a part of it.

        p.grad may be None: autograd reached the parameter, but an operator had no gradient for it.
        Raises RuntimeError if more parts arrive than in the first backward: the bucket may have been sent already.
        """
        if not self.params[slot].requires_grad:
            return
        left = self._times_left[slot] = self._times_left[slot] - 1
        if left > 0:
            return
        if left < 0:
            raise RuntimeError(
                f"the gradient of {self.names[slot]} was computed in more parts than in the first backward "
                f"({self.times[slot]}). Reentrant checkpointing can cause this: use "
                "checkpoint(..., use_reentrant=False)"
            )
        if self._is_large[slot]:
            self._absent += self._gather([slot])
        self._awaited.discard(slot)

    def start(self) -> None:
        """Begin to average.  A missing gradient counts as the sum that no_sync() left in p.grad, or else as zero."""
        late = [slot for slot, left in enumerate(self._times_left) if left]
        self._absent += self._gather(sorted({*self._small, *late}) if late else self._small)
        self.payload.used.fill_(self._prescale)
        for slot in self._absent:
            self.payload.used[slot] = 0
        self._work = self.sync.reduce(self.payload)

    def void(self) -> None:
        """Begin to average NaN: the backward failed on this rank, so the result must not look like a mean."""
        for part in (*self.views, self.payload.used):  # not the gaps, which nothing fills with zeros again
            part.fill_(torch.nan)
        self._work = self.sync.reduce(self.payload)

    def wait(self) -> None:
        self._work.wait()

    def hand_out(self) -> None:
        """Make the averages p.grad, also for parameters that only other ranks used."""
        # Only a rank that lacks gradients reads the numbers, because reading would stall a GPU.
        if self._absent:
            shares = self.payload.used.tolist()
            for slot in self._absent:
                if shares[slot]:
                    self.params[slot].grad = self.views[slot]

    def _gather(self, slots: Sequence[int]) -> list[int]:
        """Move gradients to their places, which become p.grad; return the slots without a gradient, filled with 0."""
        absent: list[int] = []
        there: list[Tensor] = []
        sources: list[Tensor] = []
        targets: list[Tensor] = []
        for slot in slots:
            param, view = self.params[slot], self.views[slot]
            grad = param.grad
            if grad is view:
                there.append(view)
            elif grad is None:
                absent.append(slot)
            elif grad.is_sparse:
                raise UserError(
                    f"{self.names[slot]} has sparse gradients, which do not fit in a bucket; use sparse=False"
                )
            else:
                sources.append(grad)
                targets.append(view)
                param.grad = view
        if absent:
            torch._foreach_zero_([self.views[slot] for slot in absent])
        if len(sources) == 1:
            # In one pass over memory.
            torch.mul(sources[0], self._prescale, out=targets[0])
        elif sources:
            torch._foreach_copy_(targets, sources)
            there += targets
        if there and self._prescale != 1.0:
            is_whole = len(there) + len(absent) == len(self.params)
            torch._foreach_mul_([self.payload.flat] if is_whole else there, self._prescale)
        return absent


def _view_like(flat: Tensor, param: nn.Parameter) -> Tensor:
    """Return a view of `flat` with the shape of `param`, and with its memory layout (channels last, say) if dense."""
    if torch.ops.aten.is_non_overlapping_and_dense(param):
        return flat.as_strided(param.size(), param.stride())
    return flat.view(param.shape)
