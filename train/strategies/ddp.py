"""torch's DistributedDataParallel, with the options that make it fastest in general."""

import inspect
from copy import deepcopy
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from train.strategies import Context, Wrapped, replicated


class _Copyable(DistributedDataParallel):
    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        """Copy the bare module: torch copies DDP over the default group alone."""
        copied: nn.Module = deepcopy(self.module, memo)
        return copied


def wrap(model: nn.Module, context: Context) -> Wrapped:
    # torch 2.15 warns of the old name.
    known = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, Any] = {buffers: context.ranks_have_own_buffers}
    wrapped = _Copyable(model, process_group=context.group, gradient_as_bucket_view=True, **options)
    return replicated(model, wrapped, wrapped.no_sync)
