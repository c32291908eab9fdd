"""Data parallelism as in many articles: a hook for each parameter that averages its gradient there and then."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from train.broadcast import broadcast_from_rank_0


class HookPerParameter(nn.Module):
    """One blocking all-reduce a parameter, during backward."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        broadcast_from_rank_0([*module.parameters(), *module.buffers()], None)
        for param in module.parameters():
            if param.requires_grad:
                param.register_post_accumulate_grad_hook(_average)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def _average(param: Tensor) -> None:
    assert param.grad is not None
    dist.all_reduce(param.grad)
    param.grad /= dist.get_world_size()
