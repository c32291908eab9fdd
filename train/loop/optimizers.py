"""The optimizer of a config, the learning rate of each step, and the moving average of the weights."""

import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn, optim

from train.config import TrainConfig
from train.errors import UserError

# As in torch's OneCycleLR: the part of the steps on which the rate rises, and how far below lr it starts and ends.
_RISING_SHARE, _START_FACTOR, _END_FACTOR = 0.3, 1 / 25, 1 / 25e4
# Of the rate after each epoch, as in PyTorch's MNIST example.
_STEP_FACTOR = 0.7


def make_optimizer(config: TrainConfig, params: Iterable[nn.Parameter]) -> optim.Optimizer:
    """Return torch.optim's algorithm, with torch's defaults for all that the config has no key for."""
    made_by = {"sgd": optim.SGD, "adam": optim.Adam, "adamw": optim.AdamW, "adadelta": optim.Adadelta}
    momentum = {"momentum": config.momentum} if config.optimizer == "sgd" else {}
    make: Any = made_by[config.optimizer]
    optimizer: optim.Optimizer = make(params, lr=config.lr, weight_decay=config.weight_decay, **momentum)
    return optimizer


def num_steps_of_run(config: TrainConfig, steps_per_epoch: int) -> int:
    """Return the length of the run, and so of its schedule, in steps."""
    return min(config.epochs * steps_per_epoch, config.max_steps or sys.maxsize)


def refuse_impossible_schedule(config: TrainConfig, steps_per_epoch: int) -> None:
    """Raise UserError if the learning rate could never rise to lr in a run of this length."""
    total = num_steps_of_run(config, steps_per_epoch)
    if config.warmup_steps > total:
        raise UserError(f"--warmup-steps is {config.warmup_steps}, but the run has only {total} steps: give fewer")
    if config.scheduler == "one_cycle" and total < 2:
        raise UserError("--scheduler=one_cycle needs two steps or more, and the run has only one: train longer")


def lr_of_step(config: TrainConfig, steps_done: int, steps_per_epoch: int) -> float:
    """Return the learning rate of the step that follows `steps_done` steps of the run; a skipped step counts, too."""
    total = num_steps_of_run(config, steps_per_epoch)
    if config.scheduler == "one_cycle":
        peak = (config.warmup_steps or _RISING_SHARE * total) - 1
        if steps_done <= peak:
            return config.lr * _cosine(_START_FACTOR, 1, steps_done / peak if peak > 0 else 1)
        return config.lr * _cosine(1, _END_FACTOR, (steps_done - peak) / max(1, total - 1 - peak))
    if steps_done < config.warmup_steps:
        return config.lr * (steps_done + 1) / config.warmup_steps
    match config.scheduler:
        case "step":
            return config.lr * _STEP_FACTOR ** (steps_done // steps_per_epoch)
        case "cosine":
            done = (steps_done - config.warmup_steps) / max(1, total - config.warmup_steps)
            return config.lr * _cosine(1, 0, done)
    return config.lr


def _cosine(start: float, end: float, done: float) -> float:
    """Return the value after the part `done` of the half cosine wave that leads from `start` to `end`."""
    return end + (start - end) * (1 + math.cos(math.pi * done)) / 2


class Ema:
    """The average of the weights after each step; a step counts `decay` times as much as the one after it.

    In step n at most (1 + n) / (10 + n) of the past counts, as in TensorFlow: the random start is soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self._params = dict(model.named_parameters())
        self._averages = {name: param.detach().clone() for name, param in self._params.items()}

    @torch.no_grad()
    def update(self) -> None:
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(list(self._averages.values()), list(self._params.values()), 1 - decay)

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Give the model the averages as its weights, in the block only."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, param in self._params.items():
            weights = param.clone()
            param.copy_(self._averages[name])
            self._averages[name].copy_(weights)

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "averages": self._averages}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        for name, average in self._averages.items():
            average.copy_(state["averages"][name])
