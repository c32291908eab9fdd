"""Memory that the caching allocator holds after each of 40 epochs of input: it must not grow."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.gpu.outcome import Failed, together
from train.data.batches import Batches
from train.data.sampler import ShardSampler
from train.datasets.synthetic import SyntheticSamples

EPOCHS = 40
# The first epochs fill the cache: batches of two sizes, each prepared while another one is read.
SETTLED = 4


def run(device: str, epochs: int = EPOCHS) -> dict[str, Any]:
    return together({input: partial(settled, device, input, epochs) for input in ("memory", "loader", "auto")})


def settled(device: str, input: str, epochs: int) -> dict[str, Any]:
    """Return the MiB reserved after each epoch.  Raises Failed if they grow after the first epochs."""
    reserved = reserved_mib(device, input, epochs)
    grown = reserved[-1] - reserved[SETTLED]
    record = {"reserved_mib": reserved, "grown_mib": grown}
    if grown:
        raise Failed(f"reserved memory grew by {grown:g} MiB after epoch {SETTLED + 1}", record)
    return record


def reserved_mib(device: str, input: str, epochs: int) -> list[float]:
    """Return the MiB reserved after each epoch of reading; each batch is used once on the training's stream."""
    on_cuda = device == "cuda"
    samples = SyntheticSamples("validation", 0)
    sampler = ShardSampler(len(samples), 600, rank=0, world_size=1, seed=0)
    batches = Batches(samples, sampler, torch.device(device, 0) if on_cuda else torch.device(device), input, workers=2)
    reserved = []
    total = torch.zeros((), device=device)
    for epoch in range(1, epochs + 1):
        sampler.set_epoch(epoch)
        for images, _ in batches:
            total += images.square().sum()
        reserved.append(torch.cuda.memory_reserved() / 2**20 if on_cuda else 0.0)
    if not torch.isfinite(total):
        raise Failed(f"--input={input} gives images that are not finite")
    return reserved
