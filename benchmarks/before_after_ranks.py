"""One rank of benchmarks/before_after.py: trains with the CustomDDP of the `train` that is first on PYTHONPATH.

The package `benchmarks` is always the one of this checkout, so this file must import none of its modules that use
`train`.  The models are torch's and torchvision's, so that only CustomDDP and SyncBatchNorm differ between two commits.
After a warm-up, rank 0 writes the losses in float64 to stdout.  Each line on stdin is then a number of steps, answered
with the seconds per step.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import resnet18

import train
from benchmarks.measure import seconds_per_step
from benchmarks.ranks import end_with_parent

# Eight steps use each batch twice.
LOSS_STEPS = 8
# Buckets are built after the first step; then nothing changes any more.
_WARM_UP_STEPS = 4
_BATCH_SIZE, _NUM_BATCHES, _NUM_CLASSES = 32, 4, 10
_TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True)
class Workload:
    """A model, the shape of a sample, and how many steps take about a second."""

    build: Callable[[], nn.Module]
    sample: tuple[int, ...]
    steps: int
    sync_batchnorm: bool = False


class Training:
    """A model in CustomDDP with an optimizer and batches; the same on both sides."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        workload = WORKLOADS[name]
        wrap, synchronised = _wrapper_and_conversion()
        torch.manual_seed(0)
        model = workload.build().to(dtype)
        if workload.sync_batchnorm:
            model = synchronised(model)
        # Like the Trainer: synchronised buffers are equal on all ranks and need not be sent.
        self.model = wrap(model, broadcast_buffers=not workload.sync_batchnorm)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(dist.get_rank())
        self.batches = itertools.cycle([_draw(workload.sample, dtype, generator) for _ in range(_NUM_BATCHES)])

    def step(self) -> Tensor:
        inputs, targets = next(self.batches)
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(inputs), targets)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def mean_losses(self, steps: int) -> list[float]:
        """Train for `steps` steps; return the loss of each, mean over the ranks."""
        losses = torch.stack([self.step() for _ in range(steps)])
        dist.all_reduce(losses)
        return [float(loss) / dist.get_world_size() for loss in losses]


def _wrapper_and_conversion() -> tuple[Callable[..., nn.Module], Callable[[nn.Module], nn.Module]]:
    """Return CustomDDP and the function that synchronises BatchNorm, from the old flat `train` or the one of today."""
    if Path(train.__file__).with_name("ddp.py").is_file():
        convert = import_module("train.sync_batchnorm").convert_sync_batchnorm
        return import_module("train.ddp").CustomDDP, partial(convert, device=torch.device("cpu"), group=None)
    convert = import_module("train.collectives.sync_batchnorm").convert_sync_batchnorm
    return import_module("train.ddp.wrapper").CustomDDP, partial(convert, group=None)


def _draw(sample: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    inputs = torch.randn((_BATCH_SIZE, *sample), generator=generator).to(dtype)
    return inputs, torch.randint(_NUM_CLASSES, (_BATCH_SIZE,), generator=generator)


def _small_layers() -> nn.Module:
    """Build 200 linear layers, all but the last 64×64 and orthogonal, so that neither signal nor gradient vanishes."""
    layers = [nn.Linear(64, 64) for _ in range(199)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers, nn.Linear(64, _NUM_CLASSES))


def _mlp() -> nn.Module:
    hidden = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(512, _NUM_CLASSES))


def _resnet18() -> nn.Module:
    """Build torchvision's ResNet18 for images of one channel."""
    model: nn.Module = resnet18(num_classes=_NUM_CLASSES)
    model.conv1 = nn.Conv2d(1, 64, kernel_size=7, stride=2, padding=3, bias=False)
    return model


WORKLOADS = {
    "small_layers": Workload(_small_layers, (64,), steps=60),
    "mlp": Workload(_mlp, (1, 28, 28), steps=240),
    "resnet18": Workload(_resnet18, (1, 28, 28), steps=8),
    "resnet18_sync_batchnorm": Workload(_resnet18, (1, 28, 28), steps=6, sync_batchnorm=True),
}


def main(name: str, root: str, folder: str, rank: int, world_size: int) -> None:
    """Answer on stdout until stdin ends: first the losses, then the seconds per step for each number of steps."""
    end_with_parent()
    if Path(train.__file__).resolve().parents[1] != Path(root).resolve():
        raise SystemExit(f"`import train` found {train.__file__} instead of the one in {root}")
    torch.set_num_threads(1)
    meeting = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size, timeout=_TIMEOUT)
    losses = Training(name, torch.float64).mean_losses(LOSS_STEPS)
    gc.collect()  # the copy in float64
    run = Training(name, torch.float32)
    for _ in range(_WARM_UP_STEPS):
        run.step()
    dist.barrier()
    _answer(rank, losses)  # only now, when this side no longer computes: the other side may be measured next
    for line in sys.stdin:
        _answer(rank, seconds_per_step(run.step, dist.barrier, int(line)))


def _answer(rank: int, value: Any) -> None:
    if rank == 0:
        print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    os._exit(0)  # at once: nothing is left to do, and the threads of gloo need not be waited for
