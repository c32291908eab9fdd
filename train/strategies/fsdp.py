"""torch's fully_shard (FSDP2): each rank keeps a part of every parameter, its gradient and its optimizer state.

A unit's parameters are gathered when its forward or backward needs them; its gradients are averaged at once.  Layers
that share a parameter belong to one unit.
Source: docs.pytorch.org, torch.distributed.fsdp.fully_shard.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from train.collectives.broadcast import broadcast_from_rank_0
from train.collectives.sync_batchnorm import has_batchnorm, has_sync_batchnorm
from train.config import setting
from train.errors import SharedError
from train.strategies import Context, Wrapped


def wrap(model: nn.Module, context: Context) -> Wrapped:
    """Return the model sharded in place, over the ranks of the context; optimizers take its parameters after this."""
    if context.device.type == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):
        # torch 2.6 shards the model, and its first forward then ends in an AttributeError.  Mended by pull request
        # 145935 of pytorch/pytorch.
        raise SharedError(
            f"{setting('strategy', 'fsdp')} cannot be used here: fully_shard of torch {torch.__version__} does not run "
            f"on CPUs. Install torch 2.7 or newer, or use {setting('strategy', 'custom_ddp')}"
        )
    if context.config.precision == "bf16" and has_batchnorm(model) and not has_sync_batchnorm(model):
        raise SharedError(
            f"{setting('strategy', 'fsdp')} with {setting('precision', 'bf16')} needs synchronised BatchNorm: leave "
            f"out {setting('sync_batchnorm', False)}, or use {setting('precision', 'fp32')}"
        )
    broadcast_from_rank_0([*model.parameters(), *model.buffers()], context.group)
    group = context.group or dist.group.WORLD
    assert group is not None
    mixed = MixedPrecisionPolicy()
    if context.config.precision == "bf16":  # gradients are summed, and weights kept, in float32
        mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options: dict[str, Any] = {"mesh": DeviceMesh.from_group(group, context.device.type), "mp_policy": mixed}
    layers = [[*layer.parameters()] for layer in model.children()]
    holders = Counter(chain(model.parameters(recurse=False), *layers))
    for layer, params in zip(model.children(), layers, strict=True):
        if params and all(holders[param] == 1 for param in params):
            fully_shard(layer, **options)
    sharded: Any = fully_shard(model, **options)  # with the layers that share a parameter

    def reshard_after_evaluation(*_: Any) -> None:
        # fully_shard leaves the outermost unit whole, and the next forward would not notice what is frozen by then.
        if not torch.is_grad_enabled():
            sharded.reshard()

    sharded.register_forward_hook(reshard_after_evaluation)

    def norm(gradients: list[Tensor]) -> Tensor:
        of_ranks = nn.utils.get_total_norm(gradients)
        return of_ranks.full_tensor() if isinstance(of_ranks, DTensor) else of_ranks  # over the shards of all ranks

    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)  # in rank 0's memory, and nothing on other ranks
    return Wrapped(
        module=sharded,
        call=sharded,
        no_sync=lambda: _no_sync(sharded),
        state_dict=lambda: get_model_state_dict(sharded, options=whole),
        norm=norm,
    )


@contextmanager
def _no_sync(model: FSDPModule) -> Iterator[None]:
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
