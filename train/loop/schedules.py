"""The learning rate of each step, as a function of the step alone: a resumed run cannot get it wrong."""

from __future__ import annotations

import math

from train.config import TrainConfig

# As in torch's OneCycleLR: the part of the steps on which the rate rises, and how far below lr it starts and ends.
_RISING_SHARE, _START_FACTOR, _END_FACTOR = 0.3, 1 / 25, 1 / 25e4


def lr_of_step(config: TrainConfig, steps_done: int, steps_per_epoch: int) -> float:
    """Return the learning rate of the step that follows `steps_done` steps of the run."""
    total = config.epochs * steps_per_epoch
    if config.scheduler == "one_cycle":
        rising = config.warmup_steps or _RISING_SHARE * total
        return config.lr * _one_cycle(steps_done, rising - 1, total - 1)
    if steps_done < config.warmup_steps:
        return config.lr * (steps_done + 1) / config.warmup_steps
    match config.scheduler:
        case "step":
            return config.lr * config.lr_gamma ** (steps_done // steps_per_epoch)
        case "cosine":
            done = (steps_done - config.warmup_steps) / max(1, total - config.warmup_steps)
            return config.lr * _cosine(1, 0, done)
    return config.lr


def _one_cycle(step: int, peak: float, last: int) -> float:
    if step <= peak:
        return _cosine(_START_FACTOR, 1, step / peak if peak > 0 else 1)
    return _cosine(1, _END_FACTOR, (step - peak) / max(1, last - peak))


def _cosine(start: float, end: float, done: float) -> float:
    """Return the value after the part `done` of the half cosine wave that leads from `start` to `end`."""
    return end + (start - end) * (1 + math.cos(math.pi * done)) / 2
