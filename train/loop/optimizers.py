"""The optimizer of a config."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn, optim

from train.config import TrainConfig


def make_optimizer(config: TrainConfig, params: Iterable[nn.Parameter]) -> optim.Optimizer:
    """Return torch.optim's algorithm, with torch's defaults for all that the config has no key for."""
    lr, weight_decay = config.lr, config.weight_decay
    groups = _groups(config, params)
    match config.optimizer:
        case "sgd":
            return optim.SGD(groups, lr=lr, momentum=config.momentum, weight_decay=weight_decay)
        case "adam":
            return optim.Adam(groups, lr=lr, weight_decay=weight_decay)
        case "adamw":
            return optim.AdamW(groups, lr=lr, weight_decay=weight_decay)
        case "adadelta":
            return optim.Adadelta(groups, lr=lr, weight_decay=weight_decay)


def _groups(config: TrainConfig, params: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Return the parameters as one group, or norms and biases, which are vectors, as a second one without decay."""
    if config.decay_norms_and_biases:
        return [{"params": list(params)}]
    decayed: list[nn.Parameter] = []
    not_decayed: list[nn.Parameter] = []
    for param in params:
        (decayed if param.ndim > 1 else not_decayed).append(param)
    return [{"params": decayed}, {"params": not_decayed, "weight_decay": 0.0}]
