"""Data parallelism as in most articles: a loop over the gradients between backward and the optimizer's step."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn

from train.broadcast import broadcast_from_rank_0


class AverageAfterBackward(nn.Module):
    """One blocking all-reduce a parameter, in `average()`, which the user calls after each backward."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        broadcast_from_rank_0([*module.parameters(), *module.buffers()], None)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def average(self) -> None:
        """Replace each gradient by its mean over the ranks."""
        for param in self.module.parameters():
            if param.grad is not None:
                dist.all_reduce(param.grad)
                param.grad /= dist.get_world_size()
