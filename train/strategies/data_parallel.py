"""torch's nn.DataParallel: one process copies the model to all of its GPUs each step and cuts the batch for them."""

import torch
from torch import nn

from train.collectives.sync_batchnorm import has_batchnorm
from train.config import setting
from train.errors import SharedError
from train.records.progress import say
from train.strategies import Autocasting, Context, Wrapped, replicated


def wrap(model: nn.Module, context: Context) -> Wrapped:
    """Return the model on all GPUs that torch sees, or on the CPU if there are none; print the number of GPUs."""
    ours, instead = setting("strategy", "data_parallel"), setting("strategy", "custom_ddp")
    if context.world_size > 1:
        raise SharedError(
            f"{ours} runs one process for all GPUs of a machine, but {context.world_size} were started: each would "
            f"train its own model. Start one, or use {instead}"
        )
    devices = torch.cuda.device_count() if context.device.type == "cuda" else 1
    if devices > 1 and has_batchnorm(model) and context.config.sync_batchnorm:
        raise SharedError(
            f"{ours} cannot synchronise BatchNorm between the GPUs of one process: use {instead} with one process per "
            f"GPU, or {setting('sync_batchnorm', False)} for statistics of each GPU alone"
        )
    if devices > 1 and model._compiled_call_impl is not None:
        # A copy of the model shares the compiled forward, which always uses the weights of the original.
        raise SharedError(
            f"{setting('compile')} cannot be used with {ours} on {devices} GPUs: the copies of the model would run "
            f"with the first GPU's weights. Use {instead} with one process per GPU, or leave out {setting('compile')}"
        )
    where = f"split over {devices} GPUs" if devices > 1 else f"computed on {context.device}, the only device"
    say(f"data_parallel: each micro-batch is {where}")
    # Its threads know that autocast is on, but not its type.
    return replicated(model, nn.DataParallel(Autocasting(model, context)))
