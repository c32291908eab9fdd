"""torch's Adadelta, a block of each parameter at a time, so that a block stays in the processor's cache."""

from __future__ import annotations

from typing import Any

from torch import Tensor, optim

# Five tensors of so many floats fit in 2 MiB of second-level cache.
_BLOCK = 2**16


class BlockedAdadelta(optim.Adadelta):
    """The same numbers, bit for bit, and the same state as torch.optim.Adadelta.

    Its step passes a dozen times over each tensor.  One that is larger than the cache comes from memory each time,
    which on a CPU costs half of the step; each operation is elementwise, so blocks may take their turns.
    """

    def _init_group(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        square_avgs: list[Tensor],
        acc_deltas: list[Tensor],
        state_steps: list[Tensor],
    ) -> bool:
        whole: tuple[list[Tensor], ...] = ([], [], [], [], [])
        has_complex: bool = super()._init_group(group, *whole)
        for param, grad, square_avg, acc_delta, step in zip(*whole, strict=True):
            tensors = (param, grad, square_avg, acc_delta)
            if param.numel() <= _BLOCK or not all(tensor.is_contiguous() for tensor in tensors):
                blocks = [tensors]
            else:
                blocks = list(zip(*(tensor.detach().view(-1).split(_BLOCK) for tensor in tensors), strict=True))
            for number, block in enumerate(blocks):
                for collected, tensor in zip((params, grads, square_avgs, acc_deltas), block, strict=True):
                    collected.append(tensor)
                # Each entry is counted up once: the blocks after the first count on copies.
                state_steps.append(step if number == 0 else step.clone())
        return has_complex
