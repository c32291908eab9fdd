"""Data parallelism as in most articles: a loop over the gradients between backward and the optimizer's step."""

from typing import Any

import torch.distributed as dist
from torch import nn

from train.collectives.broadcast import broadcast_from_rank_0
from train.collectives.waiting import waiting
from train.strategies import Context, Wrapped, replicated


class AverageAfterBackward(nn.Module):
    """One blocking all-reduce per parameter, in `average()`, which the training loop calls after the last backward."""

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.group = module, group
        broadcast_from_rank_0([*module.parameters(), *module.buffers()], group)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def average(self) -> None:
        """Replace each gradient by its mean over the ranks, which must have used the same parameters."""
        for param in self.module.parameters():
            if param.grad is not None:
                with waiting("communication"):
                    dist.all_reduce(param.grad, group=self.group)
                param.grad /= dist.get_world_size(self.group)


def wrap(model: nn.Module, context: Context) -> Wrapped:
    wrapped = AverageAfterBackward(model, context.group)
    return replicated(model, wrapped, after_backward=wrapped.average)
