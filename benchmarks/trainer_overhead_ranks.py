"""Code of each rank of benchmarks/trainer_overhead.py: train an epoch in turns, through Trainer and by hand."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from benchmarks.measure import in_turns
from train import models
from train.data.batches import Batches
from train.data.sampler import ShardSampler
from train.ddp.wrapper import CustomDDP
from train.flags import from_argv
from train.loop import setup
from train.world.environment import World
from train.world.signals import StopSignal

BATCH_SIZE = 64


def measure(model: str, rounds: int, run_dir: str) -> dict[str, list[float]]:
    """Return the seconds per step of both variants, by round.  Runs on each rank."""
    world = World(dist.get_rank(), dist.get_world_size(), dist.get_rank(), dist.get_world_size())
    flags = [f"--model={model}", f"--batch-size={BATCH_SIZE}", f"--epochs={rounds + 1}", f"--run-dir={run_dir}"]
    config = from_argv([*flags, "--dataset=synthetic", "--device=cpu", "--tensorboard", "--no-sync-batchnorm"])
    setup.configure_torch(config)
    parts = setup.load_parts(config, world)
    setup.report_start(config, world, parts)
    trainer = setup.make_trainer(config, world, StopSignal(), parts)

    torch.manual_seed(config.seed)
    bare = CustomDDP(models.build(model, parts.samples.shape, parts.samples.num_classes, None))
    optimizer = torch.optim.SGD(bare.parameters(), lr=config.lr)

    def train_with_trainer(number: int) -> float:
        steps = len(trainer.sampler)
        started = time.perf_counter()
        trainer.train_epoch()
        seconds = time.perf_counter() - started
        trainer.sampler.set_epoch(number + 1)
        return seconds / steps

    def train_bare(number: int) -> float:
        sampler = ShardSampler(len(parts.samples), BATCH_SIZE, world.rank, world.world_size, config.seed)
        sampler.set_epoch(number)
        steps = list(sampler)
        bare.train()
        batches = Batches(parts.samples, steps, parts.device, "memory")  # before the clock: it makes all samples
        started = time.perf_counter()
        for images, labels in batches:
            F.cross_entropy(bare(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        return (time.perf_counter() - started) / len(steps)

    with parts.metrics:
        # The first round connects and warms up.
        seconds = in_turns({"trainer": train_with_trainer, "bare": train_bare}, rounds + 1)
    return {name: times[1:] for name, times in seconds.items()}
