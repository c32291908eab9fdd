"""Time that the Trainer adds to a step, with metrics.jsonl, TensorBoard and progress on, against a bare loop.

    python -m benchmarks.trainer_overhead [--model mnist_cnn] [--rounds 5]

    trainer  Trainer.train_epoch() as `python -m train --run-dir DIR --tensorboard` runs it
    bare     the same model in CustomDDP, the same batches and optimizer: forward, backward, step, and nothing else

Both run in the same two processes of one thread, and take turns: one epoch of the synthetic dataset each.  Each round
gives one ratio of seconds per step; the median is the result.  The load average says how busy the machine was: ratios
from a busy one are noise.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.measure import RESULTS, in_turns, machine, median_ratio, ratios, write_result
from benchmarks.ranks import HERE, run_ranks

PROCESSES = 2
TARGET = 1.03
BATCH_SIZE = 64


def measure(model: str, rounds: int, run_dir: str) -> dict[str, list[float]]:
    """Seconds per step of both variants, by round; runs on each rank."""
    import torch.distributed as dist

    from train import models
    from train.data.batches import Batches
    from train.data.sampler import ShardSampler
    from train.ddp.wrapper import CustomDDP
    from train.flags import from_argv
    from train.loop import setup
    from train.world.environment import World
    from train.world.signals import StopSignal

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
        started = time.perf_counter()
        for images, labels in Batches(parts.samples, steps, parts.device, "memory"):
            F.cross_entropy(bare(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        return (time.perf_counter() - started) / len(steps)

    with parts.metrics:
        # The first round connects and warms up.
        seconds = in_turns({"trainer": train_with_trainer, "bare": train_bare}, rounds + 1)
    return {name: times[1:] for name, times in seconds.items()}


def main(argv: list[str] | None = None) -> int:
    """Measure, print the ratio and write RESULTS/trainer_overhead.json."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trainer_overhead", description=__doc__)
    parser.add_argument("--model", default="mnist_cnn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(argv)
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"model": options.model, "rounds": options.rounds, "run_dir": folder}
        seconds = run_ranks(measure, [HERE] * PROCESSES, timeout_s=1800, **arguments)[0]
    ratio = median_ratio(seconds["trainer"], seconds["bare"])
    result: dict[str, Any] = {
        "claim": f"a step through Trainer takes at most {TARGET} of a bare loop's",
        "ratio": ratio,
        "target": TARGET,
        "met": ratio <= TARGET,
        "ratios": ratios(seconds["trainer"], seconds["bare"]),
        "seconds_per_step": seconds,
        "settings": {"processes": PROCESSES, "threads": 1, "model": options.model, "batch_size": BATCH_SIZE},
        "load_average": {"before": load_before, "after": os.getloadavg()[0]},
        "machine": machine(),
    }
    write_result(options.results, "trainer_overhead", result)
    print(f"trainer / bare loop: {ratio:.3f} (target {TARGET}); load average before: {load_before:.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
