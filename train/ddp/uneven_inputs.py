"""Uneven inputs: a rank that has no inputs left takes part in the collectives of the others, without gradients.

    with ddp.join():
        for batch in batches_of_this_rank:
            loss(ddp(batch)).backward()
            ...

A step is one forward and one backward.  At the end all ranks get the parameters of a rank that ran the last step.
Built on torch.distributed.algorithms.join, so optimizers that support it (ZeroRedundancyOptimizer) can join too.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, JoinHook, _JoinConfig

from train.collectives.broadcast import broadcast_from

# What a rank does in a step.
_HAS_RUN_OUT, _ADDS_ONLY, _AVERAGES = 0, 1, 2


class Shadow(JoinHook):
    """Actions of a rank without inputs in the steps of the others.  Its p.grad stays, because no_sync() may use it.

    ddp: a CustomDDP; its file imports this one.
    divide_by_initial_world_size: True counts a rank without inputs as one whose gradients are zero.  False takes
        the mean over the ranks that still have inputs.
    _: options that other objects in the same join use.
    """

    def __init__(self, ddp: Any, divide_by_initial_world_size: bool = True, **_: object) -> None:
        self.ddp = ddp
        ddp.mean_over_active_ranks = not divide_by_initial_world_size

    def main_hook(self) -> None:
        steps = _exchange(self.ddp, _HAS_RUN_OUT)
        if _AVERAGES not in steps:
            return
        places = {id(view) for bucket in self.ddp.reducer.buckets for view in bucket.views}
        # A clone lies outside the bucket, so later steps need no further copy.
        kept = [
            (param, param.grad.clone() if param.grad is not None and id(param.grad) in places else param.grad)
            for param in self.ddp.module.parameters()
        ]
        self.ddp.send_buffers(_last_active(steps))
        self.ddp.reducer.shadow()
        for param, grad in kept:
            param.grad = grad

    def post_hook(self, is_last_joiner: bool) -> None:
        ddp = self.ddp
        lasted = _exchange(ddp, _AVERAGES if is_last_joiner else _HAS_RUN_OUT)
        broadcast_from(_last_active(lasted), [*ddp.module.parameters(), *ddp.module.buffers()], ddp.group)
        ddp.mean_over_active_ranks, ddp.reducer.factor = False, 1.0
        # torch leaves joining enabled, so each later forward would wait for a message that no rank sends.
        ddp._join_config = _JoinConfig.construct_disabled_join_config()


def announce(ddp: Any) -> int:
    """Tell the other ranks that this one runs a step.  Return the rank whose buffers all ranks use in it."""
    work = Join.notify_join_context(ddp)
    if work is not None:
        work.wait()
    return _last_active(_exchange(ddp, _AVERAGES if ddp.reducer.averages else _ADDS_ONLY))


def _exchange(ddp: Any, step: int) -> list[int]:
    """Return what each rank does next; set the factor that turns the mean over all ranks into that over active ones."""
    message = torch.zeros(dist.get_world_size(ddp.group), dtype=torch.int64, device=ddp.join_device)
    message[dist.get_rank(ddp.group)] = step
    dist.all_reduce(message, group=ddp.group)
    steps = [int(step) for step in message.tolist()]
    if ddp.mean_over_active_ranks:
        ddp.reducer.factor = len(steps) / sum(step != _HAS_RUN_OUT for step in steps)
    return steps


def _last_active(steps: list[int]) -> int:
    return max(rank for rank, step in enumerate(steps) if step != _HAS_RUN_OUT)
