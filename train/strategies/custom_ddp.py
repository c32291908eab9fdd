"""CustomDDP as a strategy: see train/ddp/wrapper.py."""

from functools import partial

from torch import nn

from train import sync
from train.cpu.shared_memory import SharedMemory
from train.ddp.wrapper import CustomDDP
from train.strategies import Context, Wrapped, replicated
from train.sync.all_reduce import AllReduce


def wrap(model: nn.Module, context: Context) -> Wrapped:
    """Return CustomDDP around the model; for a single process the bare model, because there is nothing to average."""
    if context.world_size == 1:
        return replicated(model, model)
    in_memory = partial(AllReduce, share=SharedMemory.of_one_host)  # on a CPU
    wrapped = CustomDDP(
        model,
        sync=in_memory if context.config.sync == "all_reduce" else sync.named(context.config.sync),
        broadcast_buffers=context.ranks_have_own_buffers,
        process_group=context.group,
    )
    return replicated(model, wrapped, wrapped.no_sync)
