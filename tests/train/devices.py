"""Tests that run on the CPU everywhere, and on CUDA where torch sees a device (`pytest -m cuda` takes those alone)."""

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


def on_one_gpu(rank: int | str) -> dict[str, str]:
    """Variables with which NCCL may connect two ranks on one GPU: before 2.30 it must take them for two hosts."""
    # Without NCCL_DEBUG the reason of a refusal is not in the error.
    shared = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_DEBUG": "WARN"}
    return {"NCCL_HOSTID": f"host-{rank}", **shared}


def skip_if_refused(said: str) -> None:
    """Skip the test if a rank says that NCCL does not connect two ranks on one GPU; any other error is a failure."""
    if any(words in said for words in ("Duplicate GPU", "same GPU", "ncclInvalidUsage")):
        pytest.skip(f"NCCL {torch.cuda.nccl.version()} does not connect two ranks on one GPU")
