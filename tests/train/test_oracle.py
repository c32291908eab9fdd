"""Runs on one to four processes against a plain loop: settings drawn by a seed, `pytest --seed=N` draws others."""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, StepLR

from tests.cli import records
from tests.ranks import make_trainer, run_ranks
from train import datasets, models
from train.config import available
from train.data.shard import epoch_order
from train.datasets._torchvision import TensorSamples
from train.ddp.wrapper import CustomDDP
from train.strategies import custom_ddp
from train.world.environment import World

pytestmark = [pytest.mark.slow, pytest.mark.long]
_NUMBER, _EPOCHS, _VALIDATION = 60, 2, 21
# Relative, of the losses: types of few digits round differently, fsdp also weights.
_TOLERANCE = {"fp32": 3e-5, "bf16": 2e-2, "fp16": 2e-2}
_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_RATES = {"sgd": 0.1, "adam": 3e-3, "adamw": 3e-3, "adadelta": 0.5}


class Drawn(NamedTuple):
    """The settings of one run."""

    strategy: str
    world_size: int
    batchnorm: bool
    optimizer: str
    scheduler: str
    precision: str
    accumulate: int
    batch_size: int
    num_samples: int
    max_steps: int
    clip_norm: float

    @property
    def flags(self) -> list[str]:
        keys = ("strategy", "optimizer", "scheduler", "precision", "accumulate", "batch_size", "max_steps", "clip_norm")
        given = [f"--{key.replace('_', '-')}={getattr(self, key)}" for key in keys]
        given += [f"--model={'mnist_bn' if self.batchnorm else 'mlp'}", f"--lr={_RATES[self.optimizer]}"]
        given += ["--momentum=0.9"] if self.optimizer == "sgd" else []
        return [*given, "--device=cpu", "--weight-decay=0.01", f"--epochs={_EPOCHS}"]


def _draw(seed: int) -> list[Drawn]:
    of = random.Random(seed)
    drawn: list[Drawn] = []
    while len(drawn) < _NUMBER:
        strategy = of.choice(available("strategies"))
        world_size = 1 if strategy in ("single", "data_parallel") else of.randint(1, 4)
        batch_size, accumulate, num_samples = of.randint(8, 24), of.randint(1, 5), of.randint(30, 60)
        batchnorm = strategy != "pipeline" and of.random() < 0.6
        if strategy == "pipeline":
            accumulate = max(accumulate, world_size)
        num_samples += batchnorm and num_samples % batch_size == 1
        most = -(-num_samples // batch_size) * _EPOCHS
        drawn.append(
            Drawn(
                strategy,
                world_size,
                batchnorm,
                of.choice([*_RATES]),
                of.choice(["none", "step", "cosine", "one_cycle"]),
                of.choice(["fp32", "fp32", "bf16", "bf16" if strategy in ("fsdp", "pipeline") else "fp16"]),
                accumulate,
                batch_size,
                num_samples,
                of.randint(4, most),
                of.choice([0.5, 1e6]),
            )
        )
    return drawn


def _build(name: str, *_: object) -> nn.Module:
    norms = [nn.BatchNorm1d(12), nn.BatchNorm1d(10)] if name == "mnist_bn" else [nn.Tanh(), nn.Tanh()]
    ends = nn.Linear(16, 12, bias=False), norms[0], nn.ReLU(), nn.Linear(12, 10, bias=False), norms[1], nn.ReLU()
    return nn.Sequential(nn.Flatten(), *ends, nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 5))


def _samples(num: int) -> TensorSamples:
    generator = torch.Generator().manual_seed(num)
    images = torch.randint(0, 256, (num, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return TensorSamples(images, torch.randint(0, 5, (num,), generator=generator), (0.5,), (0.3,))


def _scaler(c: Drawn) -> torch.amp.GradScaler:
    """A scale that does not overflow: on more ranks a larger part of the first steps would be skipped."""
    return torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=c.precision == "fp16")


def _torchs_own(c: Drawn, params: Iterator[nn.Parameter]) -> tuple[Any, Any]:
    """Return optimizer and scheduler."""
    lr, decay = _RATES[c.optimizer], 0.01
    optimizers: dict[str, Callable[[], Any]] = {
        "sgd": lambda: optim.SGD(params, lr, momentum=0.9, weight_decay=decay),
        "adam": lambda: optim.Adam(params, lr, weight_decay=decay),
        "adamw": lambda: optim.AdamW(params, lr, weight_decay=decay),
        "adadelta": lambda: optim.Adadelta(params, lr, weight_decay=decay),
    }
    optimizer = optimizers[c.optimizer]()
    steps_per_epoch = -(-c.num_samples // c.batch_size)
    schedules: dict[str, Callable[[], Any]] = {
        "none": lambda: LambdaLR(optimizer, lambda _: 1.0),
        "step": lambda: StepLR(optimizer, steps_per_epoch, 0.7),
        "cosine": lambda: CosineAnnealingLR(optimizer, c.max_steps),
        "one_cycle": lambda: OneCycleLR(optimizer, lr, c.max_steps, cycle_momentum=False),
    }
    return optimizer, schedules[c.scheduler]()


def _plain_loop(c: Drawn, model: nn.Module, train: tuple[Tensor, Tensor], val: tuple[Tensor, Tensor]) -> list[float]:
    """Return the loss of each step, and after each epoch that of the validation set."""
    optimizer, schedule = _torchs_own(c, model.parameters())
    scaler = _scaler(c)
    autocast = torch.autocast("cpu", dtype=_TYPES[c.precision], enabled=c.precision != "fp32")
    losses: list[float] = []
    (images, labels), step = train, 0
    for epoch in range(1, _EPOCHS + 1):
        model.train()
        for chosen in torch.tensor(epoch_order(c.num_samples, 0, epoch)).split(c.batch_size)[: c.max_steps - step]:
            total = 0.0
            # BatchNorm needs two samples in each micro-batch.
            for part in chosen.tensor_split(max(1, min(c.accumulate, len(chosen) // (2 if c.batchnorm else 1)))):
                with autocast:
                    logits = model(images[part])
                loss = F.cross_entropy(logits.float(), labels[part], reduction="sum") / len(chosen)
                scaler.scale(loss).backward()
                total += float(loss)
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), c.clip_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            schedule.step()
            losses, step = [*losses, total], step + 1
        with torch.no_grad(), autocast:
            losses.append(float(F.cross_entropy(model.eval()(val[0]).float(), val[1])))
        if step == c.max_steps:
            break
    return losses


def _train_each(world: World, folder: Path, drawn: Sequence[Drawn]) -> list[list[float]]:
    return [_train(world, folder / str(number), one) for number, one in enumerate(drawn)]


def _train(world: World, run_dir: Path, one: Drawn) -> list[float]:
    def load(name: str, data_root: str, split: str, seed: int) -> TensorSamples:
        return _samples(one.num_samples if split == "train" else _VALIDATION)

    with (
        mock.patch.object(models, "build", _build),
        mock.patch.object(datasets, "load", load),
        mock.patch.object(custom_ddp, "CustomDDP", partial(CustomDDP, bucket_mib=0.0005)),
    ):
        trainer = make_trainer(world, *one.flags, f"--run-dir={run_dir}")
        trainer.run.engine.scaler = _scaler(one)
        trainer.fit()
    if world.rank != 0:
        return []
    steps, losses = records(run_dir, "step"), list[float]()
    for epoch in records(run_dir, "epoch"):
        losses += [record["loss"] for record in steps if record["epoch"] == epoch["epoch"]]
        losses.append(epoch["val_loss"])
    return losses


@pytest.mark.parametrize("world_size", [1, 2, 3, 4], ids=lambda n: f"world={n}")
def test_losses_of_any_settings_equal_those_of_a_plain_loop(
    world_size: int, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    seed = pytestconfig.getoption("--seed")
    drawn = [one for one in _draw(seed) if one.world_size == world_size]
    found = run_ranks(world_size, _train_each, tmp_path, drawn)[0]
    wrong = []
    for one, losses in zip(drawn, found, strict=True):
        torch.manual_seed(0)
        model = _build("mnist_bn" if one.batchnorm else "mlp")
        train, val = (
            ((split.images.float() / 255 - 0.5) / 0.3, split.labels)
            for split in map(_samples, (one.num_samples, _VALIDATION))
        )
        expected = _plain_loop(one, model, train, val)
        if losses != pytest.approx(expected, rel=_TOLERANCE[one.precision]):
            pairs = zip(losses, expected, strict=False)
            worst = max(abs(ours / theirs - 1) for ours, theirs in pairs)
            wrong.append(f"{one}: {len(losses)} of {len(expected)} losses, off by up to {worst:.1e}")
    assert not wrong, "\n".join(wrong)
