"""torch's DistributedDataParallel, with the options that make it fastest in general."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from train.strategies import Context, Wrapped, replicated


def wrap(model: nn.Module, context: Context) -> Wrapped:
    """Return native DDP with gradients as views of its buckets."""
    wrapped = DistributedDataParallel(
        model,
        process_group=context.group,
        bucket_cap_mb=context.bucket_mib,
        broadcast_buffers=context.ranks_have_own_buffers,
        gradient_as_bucket_view=True,
    )
    return replicated(model, wrapped, wrapped.no_sync)
