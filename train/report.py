"""What a run says about itself at its start, in words and as a record; and what it refuses before it starts."""

from __future__ import annotations

import platform
from typing import Any

import torch

from train import __version__
from train.config import TrainConfig
from train.errors import UserError
from train.shard import num_steps, share, step_range
from train.world import World


def refuse_impossible(config: TrainConfig, world: World, device: torch.device) -> None:
    """Raise UserError if the config cannot run on this many processes or on this device."""
    if config.batch_size < world.world_size:
        raise UserError(
            f"--batch-size is {config.batch_size}, the samples of a step over all processes together, but there are "
            f"{world.world_size} processes, so some would never have any: give at least {world.world_size}"
        )
    if config.precision == "fp16" and device.type != "cuda":
        raise UserError(f"--precision=fp16 needs a CUDA device, and this is {device}; bf16 and fp32 work here")


def arithmetic(config: TrainConfig, world: World, num_samples: int) -> dict[str, int]:
    """What the global batch means for this number of processes and samples."""
    steps = num_steps(num_samples, config.batch_size)
    whole = range(config.batch_size)
    return {
        "batch_size": config.batch_size,
        "world_size": world.world_size,
        "largest_share": len(share(whole, 0, world.world_size)),
        "smallest_share": len(share(whole, world.world_size - 1, world.world_size)),
        "accumulate": config.accumulate,
        "num_samples": num_samples,
        "steps_per_epoch": steps,
        "last_batch": len(step_range(num_samples, config.batch_size, steps - 1)),
    }


def in_words(numbers: dict[str, int]) -> str:
    """The arithmetic as two lines for a person."""
    n = numbers
    shares = f"{n['smallest_share']}"
    if n["largest_share"] != n["smallest_share"]:
        shares += f" or {n['largest_share']}"
    pieces = f", in {n['accumulate']} micro-batches" if n["accumulate"] > 1 else ""
    last = f", the last of {n['last_batch']}" if n["last_batch"] != n["batch_size"] else ""
    return (
        f"global batch {n['batch_size']} = {n['world_size']} process{'es' * (n['world_size'] > 1)} "
        f"x {shares} samples{pieces}\n"
        f"{n['num_samples']} samples = {n['steps_per_epoch']} steps an epoch{last}"
    )


def start_record(
    config: TrainConfig, world: World, device: torch.device, where: list[str], numbers: dict[str, int]
) -> dict[str, Any]:
    """The values of the `start` record of metrics.jsonl."""
    return {
        "world": {
            "world_size": world.world_size,
            "launcher": world.launcher,
            "attempt": world.attempt,
            "ranks": where,
        },
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "versions": {"train": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "config": config.model_dump(),
        "arithmetic": numbers,
    }
