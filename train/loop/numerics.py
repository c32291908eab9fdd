"""Settings of torch's arithmetic, made once before CUDA starts: float32 in full or as TF32, deterministic or not."""

from __future__ import annotations

import os
import warnings

import torch

from train.config import TrainConfig


def set_numerics(config: TrainConfig) -> None:
    """Set the precision of float32 convolutions and matrix products, and deterministic algorithms if asked for.

    Without a setting torch takes TF32 for convolutions and full float32 for matrix products.
    """
    # Numbers below 1e-38 take a processor a hundred times as long as others, and averages that decay end up there.
    torch.set_flush_denormal(True)
    _set_tf32(config.precision == "tf32")
    if config.deterministic:
        # cuBLAS reads this when it starts; without it torch refuses matrix products.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False


def _set_tf32(allowed: bool) -> None:
    # torch 2.9 calls these names old, but only they set both old and new names (fp32_precision).  If only the new names
    # are set, torch.backends.cudnn.flags() and others that read the old ones raise an error.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.backends.cuda.matmul.allow_tf32 = allowed
        torch.backends.cudnn.allow_tf32 = allowed
