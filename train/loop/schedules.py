"""The learning rate of each step, as a function of the step alone: a resumed run cannot get it wrong."""

from __future__ import annotations

import math
import sys

from train.config import TrainConfig
from train.errors import UserError

# As in torch's OneCycleLR: the part of the steps on which the rate rises, and how far below lr it starts and ends.
_RISING_SHARE, _START_FACTOR, _END_FACTOR = 0.3, 1 / 25, 1 / 25e4


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
