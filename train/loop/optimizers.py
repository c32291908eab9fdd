"""The optimizer of a config, and the learning rate of each epoch as a function of the epoch alone."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import nn, optim

from train.config import TrainConfig


def make_optimizer(config: TrainConfig, params: Iterable[nn.Parameter]) -> optim.Optimizer:
    """torch.optim's algorithm with torch's defaults, but for what the config sets."""
    lr, weight_decay = config.lr, config.weight_decay
    match config.optimizer:
        case "sgd":
            return optim.SGD(params, lr=lr, momentum=config.momentum, weight_decay=weight_decay)
        case "adam":
            return optim.Adam(params, lr=lr, weight_decay=weight_decay)
        case "adamw":
            return optim.AdamW(params, lr=lr, weight_decay=weight_decay)
        case "adadelta":
            return optim.Adadelta(params, lr=lr, weight_decay=weight_decay)


def lr_of_epoch(config: TrainConfig, epoch: int) -> float:
    """Learning rate of epoch `epoch` (from 1).  Needs no state, so a resumed run cannot get it wrong."""
    match config.scheduler:
        case "none":
            return config.lr
        case "step":
            return config.lr * config.lr_gamma ** (epoch - 1)
        case "cosine":
            return config.lr * 0.5 * (1 + math.cos(math.pi * (epoch - 1) / config.epochs))
