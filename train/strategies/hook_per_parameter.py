"""Data parallelism as in many articles: a hook for each parameter that averages its gradient at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from train.collectives.broadcast import broadcast_from_rank_0
from train.collectives.waiting import waiting
from train.strategies import Context, Wrapped, replicated


class HookPerParameter(nn.Module):
    """One blocking all-reduce per parameter, during backward.  All ranks must use the same parameters in each step."""

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.group, self._averages = module, group, True
        broadcast_from_rank_0([*module.parameters(), *module.buffers()], group)
        for param in module.parameters():
            if param.requires_grad:
                param.register_post_accumulate_grad_hook(self._average)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backwards in the block only add to p.grad; the hooks of the next backward outside average the sum."""
        before, self._averages = self._averages, False
        try:
            yield
        finally:
            self._averages = before

    def _average(self, param: Tensor) -> None:
        if not self._averages:
            return
        assert param.grad is not None
        with waiting("communication"):
            dist.all_reduce(param.grad, group=self.group)
        param.grad /= dist.get_world_size(self.group)


def wrap(model: nn.Module, context: Context) -> Wrapped:
    wrapped = HookPerParameter(model, context.group)
    return replicated(model, wrapped, wrapped.no_sync)
