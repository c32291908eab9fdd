"""A copy of the model's buffers, for steps that must leave no trace."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn


class BufferCopies:
    """Keeps the buffers (the running statistics of BatchNorm) as they were before the forward of a step."""

    def __init__(self, model: nn.Module) -> None:
        # Only tensors of one type are copied in one kernel.
        same_type: dict[torch.dtype, list[Tensor]] = defaultdict(list)
        for buffer in model.buffers():
            same_type[buffer.dtype].append(buffer)
        self._pairs = [(buffers, [buffer.clone() for buffer in buffers]) for buffers in same_type.values()]

    @torch.no_grad()
    def keep(self) -> None:
        """Remember the present values."""
        for buffers, copies in self._pairs:
            torch._foreach_copy_(copies, buffers)

    @torch.no_grad()
    def restore(self) -> None:
        """Go back to the values of the last keep()."""
        for buffers, copies in self._pairs:
            torch._foreach_copy_(buffers, copies)
