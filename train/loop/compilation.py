"""torch.compile for the model, or the reason why it cannot be used here."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

import torch
from torch import nn

from train.collectives.sync_batchnorm import has_sync_batchnorm
from train.errors import SharedError


def compile_model(model: nn.Module, device: torch.device) -> None:
    """Let torch compile the model at its first forward; its parameters and their names stay.

    Raises SharedError if it cannot: without a compiler, or with layers that send messages.
    """
    compiler = os.environ.get("CXX") or "g++"
    if shutil.which(compiler) is None and shutil.which("clang++") is None:
        raise SharedError(
            f"--compile needs a C++ compiler, and neither {compiler} nor clang++ is on PATH: install one, or leave out "
            "--compile"
        )
    if device.type == "cuda" and find_spec("triton") is None:
        raise SharedError("--compile needs the package triton on CUDA: install it, or leave out --compile")
    if has_sync_batchnorm(model):
        raise SharedError(
            "--compile cannot be used with synchronised BatchNorm: add "
            "--no-sync-batchnorm (each process normalises by its own samples), or leave out --compile"
        )
    model.compile()
