"""The device on which each rank computes, and the group in which gradients travel between these devices."""

import os
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from train.config import TrainConfig, setting
from train.errors import SharedError, UserError, differences
from train.world.environment import World


def pick_device(world: World, wanted: str) -> torch.device:
    """Return this rank's device: CUDA device number local_rank, or the CPU.

    If the site has bound a task to one GPU, the task sees only this GPU, as number 0, whatever its local_rank.
    """
    count = torch.cuda.device_count()
    if wanted == "cpu" or (wanted == "auto" and count == 0):
        return torch.device("cpu")
    index = 0 if count == 1 else world.local_rank
    if index >= count:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise UserError(
            f"LOCAL_RANK is {world.local_rank} but torch sees {count} CUDA devices on "
            f"{socket.gethostname()} (CUDA_VISIBLE_DEVICES is {'not set' if visible is None else repr(visible)}): "
            f"start at most one process per device, or use {setting('device', 'cpu')}"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def gradient_group(device: torch.device, timeout_s: float) -> dist.ProcessGroup | None:
    """Return the group for gradients: NCCL for CUDA devices, otherwise the default group (None)."""
    return new_group(device, timeout_s) if device.type == "cuda" else None


def new_group(device: torch.device, timeout_s: float) -> dist.ProcessGroup:
    """Return a group of all ranks with a communicator of its own, NCCL's for CUDA devices, otherwise gloo's."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    group = dist.new_group(backend=backend, timeout=timedelta(seconds=timeout_s))
    assert isinstance(group, dist.ProcessGroup)
    return group


def refuse_impossible(config: TrainConfig, world: World, device: torch.device) -> None:
    """Raise SharedError if the config cannot run on this many processes or on this device."""
    _, readers = config.reader(world.rank, world.world_size)
    if config.logical_world is not None and config.logical_world < world.world_size:
        raise SharedError(
            f"{setting('logical_world')} is {config.logical_world}, and {world.world_size} processes were started: "
            "each computes whole slices, so give at least one for each"
        )
    if config.batch_size < readers:
        raise SharedError(
            f"{setting('batch_size')} is {config.batch_size}, the global batch, but "
            f"{readers} processes share it: give at least {readers}"
        )
    if config.strategy == "pipeline" and config.batch_size < config.accumulate:
        raise SharedError(
            f"--batch-size is {config.batch_size} and --accumulate {config.accumulate}: a pipeline needs at least one "
            "sample in each micro-batch. Give a larger --batch-size or a smaller --accumulate"
        )
    if config.precision == "tf32" and (device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0)):
        wanted = setting("precision", "tf32")
        raise SharedError(f"{wanted} needs a GPU with Ampere or newer, and this is {device}; fp32 works here")


def where_ranks_are(world: World, device: torch.device) -> list[str]:
    """Return one line for each rank: `rank 3: node 1 (host), local rank 1, cuda:1`.  A collective.

    Raises SharedError if ranks compute on CPUs and GPUs, or if two ranks use one GPU, which NCCL does not support.
    """
    line = (
        f"rank {world.rank}: node {world.node_rank} ({socket.gethostname()}), "
        f"local rank {world.local_rank}, {device}, {torch.get_num_threads()} thread"
        f"{'s' * (torch.get_num_threads() != 1)}"
    )
    gathered: list[tuple[str, str, str, str | None]] = [("", "", "", None)] * world.world_size
    dist.all_gather_object(gathered, (line, device.type, *device_identity(device)))
    refuse_different_devices({rank: kind for rank, (_, kind, _, _) in enumerate(gathered)})
    if os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1":
        refuse_shared_devices([(host, uuid) for _, _, host, uuid in gathered])
    return [line for line, *_ in gathered]


def device_identity(device: torch.device) -> tuple[str, str | None]:
    """Return the host as NCCL knows it, and the UUID of the GPU or MIG slice; None for a CPU or if it is unknown."""
    host = os.environ.get("NCCL_HOSTID") or socket.gethostname()
    if device.type != "cuda":
        return host, None
    # CUDA shows one MIG slice to a process, and not every driver gives the slice a UUID apart from its GPU's.
    if "MIG" in torch.cuda.get_device_name(device):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return host, visible if visible.startswith("MIG-") else None
    return host, str(torch.cuda.get_device_properties(device).uuid)


def processor(device: torch.device) -> str:
    """Return the kind of processor, which decides the last bits of a result: `cpu AVX512`, or the GPU's name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu {torch.backends.cpu.get_cpu_capability()}"


def refuse_different_devices(kind_of: Mapping[int, str]) -> None:
    """Raise SharedError, with the ranks, unless all ranks compute on devices of one kind, such as cuda."""
    if listed := differences(kind_of):
        raise SharedError(
            f"the ranks compute on different devices: {listed}. Find out why some see no GPU (the driver, "
            f"CUDA_VISIBLE_DEVICES, the scheduler's GPU binding), or give {setting('device', 'cpu')}"
        )


def refuse_shared_devices(devices: Sequence[tuple[str, str | None]]) -> None:
    """Raise SharedError, with the ranks, if two ranks have the same (host, UUID); the UUID None may repeat."""
    ranks_of: dict[tuple[str, str], list[int]] = {}
    for rank, (host, uuid) in enumerate(devices):
        if uuid is not None:
            ranks_of.setdefault((host, uuid), []).append(rank)
    shared = [
        f"ranks {', '.join(map(str, ranks))} all use GPU {uuid} of {host}"
        for (host, uuid), ranks in ranks_of.items()
        if len(ranks) > 1
    ]
    if shared:
        raise SharedError(
            f"{'; '.join(shared)}, but NCCL needs one GPU per process. Start one process for each GPU. Check "
            "that CUDA_VISIBLE_DEVICES or the scheduler's GPU binding gives each process a different GPU"
        )
