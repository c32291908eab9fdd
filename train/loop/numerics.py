"""How torch computes: float32 in full or as TF32, deterministic or not, compiled or not; what it draws at random."""

import os
import warnings

import torch
from torch import nn

from train.collectives.sync_batchnorm import has_sync_batchnorm
from train.config import TrainConfig, setting
from train.cpu.malloc import keep_freed_memory
from train.data.shard import seed_of
from train.errors import SharedError


def set_numerics(config: TrainConfig) -> None:
    """Set torch's options for the whole process, before CUDA starts.

    Without a setting torch takes TF32 for convolutions and full float32 for matrix products.
    """
    keep_freed_memory()
    # Numbers below 1e-38 take a processor a hundred times as long as others, and averages that decay end up there.
    torch.set_flush_denormal(True)
    # torch 2.9 calls these names old, but only they set both old and new names (fp32_precision).  If only the new names
    # are set, torch.backends.cudnn.flags() and others that read the old ones raise an error.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.precision == "tf32"
    if config.logical_world is not None and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # torch would take all cores for one process, and sums depend on how many
    if config.deterministic or config.logical_world is not None:
        # cuBLAS reads this when it starts; without it torch refuses matrix products.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False


def compile_model(model: nn.Module) -> None:
    """Let torch compile the model at its first forward; its parameters and their names stay."""
    if has_sync_batchnorm(model):
        raise SharedError(
            f"{setting('compile')} cannot be used with synchronised BatchNorm: add {setting('sync_batchnorm', False)} "
            f"(each process normalises by its own samples), or leave out {setting('compile')}"
        )
    model.compile()


def seed(device: torch.device, *position: int) -> None:
    """Make what torch draws next a function of the position in the training."""
    number = seed_of(*position)
    # Not torch.manual_seed, which formats a stack trace for each kind of device that is not in use.
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        own = torch.cuda.current_device()
        for index, gpu in enumerate(torch.cuda.default_generators):  # data_parallel draws on all of them
            gpu.manual_seed(number + (index - own) % len(torch.cuda.default_generators))
