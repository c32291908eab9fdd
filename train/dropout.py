"""Dropout whose random numbers cost little on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_LEVELS = 2**16


class Dropout(nn.Dropout):
    """torch's, but on a CPU four elements share one random number of 64 bits, where torch draws one for each.

    Its drawing takes as long as a convolution of `mnist_cnn`.  Sixteen bits an element make p a multiple of 2**-16;
    what is kept is scaled by that rounded p, so the mean stays what it is without dropout.
    """

    def forward(self, input: Tensor) -> Tensor:
        """A tensor of the input's shape, type and memory layout."""
        if not self.training or self.p in (0, 1) or input.device.type != "cpu":
            return super().forward(input)
        dropped = round(self.p * _LEVELS)
        draws = torch.empty(-(-input.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        kept = draws.view(torch.int16)[: input.numel()] >= dropped - _LEVELS // 2
        mask = kept.to(input.dtype).mul_(_LEVELS / (_LEVELS - dropped))
        if torch.ops.aten.is_non_overlapping_and_dense(input):
            return input * mask.as_strided(input.size(), input.stride())
        return input * mask.view(input.shape)
