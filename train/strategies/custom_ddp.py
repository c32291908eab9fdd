"""CustomDDP as a strategy: see train/ddp/wrapper.py."""

from torch import nn

from train import sync
from train.ddp.wrapper import CustomDDP
from train.strategies import Context, Wrapped, replicated


def wrap(model: nn.Module, context: Context) -> Wrapped:
    """Return CustomDDP around the model; for a single process the bare model, because there is nothing to average."""
    if context.world_size == 1:
        return replicated(model, model)
    wrapped = CustomDDP(
        model,
        sync=sync.named(context.config.sync),
        broadcast_buffers=context.ranks_have_own_buffers,
        process_group=context.group,
    )
    return replicated(model, wrapped, wrapped.no_sync)
