"""A copy of the model's buffers, for steps that must leave no trace."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BufferCopies:
    """Keeps the buffers (the running statistics of BatchNorm) as they were before the forward of a step."""

    def __init__(self, model: nn.Module) -> None:
        self._buffers: list[Tensor] = list(model.buffers())
        self._copies = [buffer.clone() for buffer in self._buffers]

    @torch.no_grad()
    def keep(self) -> None:
        """Remember the present values."""
        if self._buffers:
            torch._foreach_copy_(self._copies, self._buffers)

    @torch.no_grad()
    def restore(self) -> None:
        """Go back to the values of the last keep()."""
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._copies)
