"""Tests that run on the CPU everywhere, and on CUDA where torch sees a device (`pytest -m cuda` takes those alone)."""

from __future__ import annotations

import pytest
import torch

needs_fsdp_on_cpus = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"), reason="fully_shard of torch 2.6 does not run on CPUs"
)
# A test with `@devices` gets the name of its device.
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])


def device_of(name: str) -> torch.device:
    """The device of this rank: all ranks of a test share one GPU.  Products are in whole float32, as on the CPU."""
    if name == "cpu":
        return torch.device("cpu")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.cuda.set_device(0)
    return torch.device("cuda", 0)
