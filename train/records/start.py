"""The report of a run at its start, in words and as a record."""

from __future__ import annotations

import platform
import shlex
import sys
import uuid
from typing import Any

import torch

from train import __version__
from train.config import TrainConfig
from train.data.sampler import ShardSampler
from train.data.shard import share
from train.world.environment import World


def arithmetic(config: TrainConfig, world: World, sampler: ShardSampler) -> dict[str, int]:
    """Return how the processes share the global batch, and how many steps an epoch has.

    sampler: at the start of an epoch.
    """
    readers = sampler.world_size
    first, last = ([len(share(part, rank, readers)) for part in sampler.parts()] for rank in (0, readers - 1))
    return {
        "batch_size": config.batch_size,
        "world_size": world.world_size,
        "readers": readers,
        "largest_share": sum(first),
        "smallest_share": sum(last),
        "accumulate": config.accumulate,
        "num_samples": sampler.num_samples,
        "steps_per_epoch": len(sampler),
        "last_batch": len(sampler.stretch(len(sampler) - 1)),
    }


def in_words(numbers: dict[str, int]) -> str:
    n = numbers
    shares = f"{n['smallest_share']}"
    if n["largest_share"] != n["smallest_share"]:
        shares += f" or {n['largest_share']}"
    pieces = f", in {n['accumulate']} micro-batches" if n["accumulate"] > 1 else ""
    last = f", the last with {n['last_batch']} samples" if n["last_batch"] != n["batch_size"] else ""
    who = f"{n['readers']} process{'es' * (n['readers'] > 1)}"
    if n["readers"] < n["world_size"]:
        who = f"{n['readers']} pipeline of {n['world_size']} processes"
    return (
        f"global batch {n['batch_size']} = {who} x {shares} samples{pieces}\n"
        f"{n['num_samples']} samples = {n['steps_per_epoch']} steps per epoch{last}"
    )


def start_record(
    config: TrainConfig,
    world: World,
    device: torch.device,
    where: list[str],
    numbers: dict[str, int],
    settings: set[str] | None = None,
) -> dict[str, Any]:
    """Return the values of the `start` record of metrics.jsonl.

    settings: the names of the settings that the run has; all of the config's unless given.
    where: what train.world.placement.where_ranks_are() returns; numbers: what arithmetic() returns.
    run_id is random and new at each start.  command_line is how a shell would start this process.
    """
    return {
        "run_id": uuid.uuid4().hex,
        "command_line": shlex.join(sys.orig_argv),
        "world": {"world_size": world.world_size, "launcher": world.launcher, "attempt": world.attempt, "ranks": where},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "versions": {"train": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "config": config.model_dump(include=settings),
        "arithmetic": numbers,
    }
