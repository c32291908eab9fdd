"""torch's DistributedDataParallel, with the options that make it fastest in general."""

import inspect
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from train.strategies import Context, Wrapped, replicated


def wrap(model: nn.Module, context: Context) -> Wrapped:
    # torch 2.15 warns of the old name.
    known = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, Any] = {buffers: context.ranks_have_own_buffers}
    wrapped = DistributedDataParallel(
        model,
        process_group=context.group,
        gradient_as_bucket_view=True,
        **options,
    )
    return replicated(model, wrapped, wrapped.no_sync)
