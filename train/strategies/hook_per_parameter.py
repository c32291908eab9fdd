"""Data parallelism as in many articles: a hook for each parameter that averages its gradient there and then."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from train.collectives.broadcast import broadcast_from_rank_0
from train.collectives.waiting import waiting
from train.strategies import Context, Wrapped, replicated


class HookPerParameter(nn.Module):
    """One blocking all-reduce a parameter, during backward.  All ranks must use the same parameters in each step."""

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module = module
        broadcast_from_rank_0([*module.parameters(), *module.buffers()], group)
        for param in module.parameters():
            if param.requires_grad:
                param.register_post_accumulate_grad_hook(partial(_average, group=group))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def _average(param: Tensor, group: dist.ProcessGroup | None) -> None:
    assert param.grad is not None
    with waiting("communication"):
        dist.all_reduce(param.grad, group=group)
    param.grad /= dist.get_world_size(group)


def wrap(model: nn.Module, context: Context) -> Wrapped:
    """Return the model with hooks, over the ranks that share it."""
    return replicated(model, HookPerParameter(model, context.group))
