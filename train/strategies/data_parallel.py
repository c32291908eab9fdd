"""torch's nn.DataParallel: one process copies the model to all of its GPUs each step and cuts the batch for them."""

import torch
from torch import nn

from train.collectives.sync_batchnorm import has_batchnorm
from train.errors import SharedError
from train.records.progress import say
from train.strategies import Autocasting, Context, Wrapped, replicated


def wrap(model: nn.Module, context: Context) -> Wrapped:
    """Return the model on all GPUs that torch sees, or on the CPU if there are none; print the number of GPUs.

    Raises SharedError if there are several processes, if BatchNorm would use the statistics of a GPU's share, or if a
    compiled model would run on several GPUs.
    """
    if context.world_size > 1:
        raise SharedError(
            f"--strategy=data_parallel runs one process for all GPUs of a machine, but {context.world_size} were "
            "started: each would train its own model. Start one, or use --strategy=custom_ddp"
        )
    devices = torch.cuda.device_count() if context.device.type == "cuda" else 1
    if devices > 1 and has_batchnorm(model) and context.config.sync_batchnorm:
        raise SharedError(
            "--strategy=data_parallel cannot synchronise BatchNorm between the GPUs of one process: use "
            "--strategy=custom_ddp with one process per GPU, or --no-sync-batchnorm for statistics of each GPU alone"
        )
    if devices > 1 and model._compiled_call_impl is not None:
        # A copy of the model shares the compiled forward, which always uses the weights of the original.
        raise SharedError(
            f"--compile cannot be used with --strategy=data_parallel on {devices} GPUs: the copies of the model would "
            "run with the first GPU's weights. Use --strategy=custom_ddp with one process per GPU, or leave out "
            "--compile"
        )
    where = f"split over {devices} GPUs" if devices > 1 else f"computed on {context.device}, the only device"
    say(f"data_parallel: each micro-batch is {where}")
    # Its threads know that autocast is on, but not its type.
    return replicated(model, nn.DataParallel(Autocasting(model, context)))
