"""The training package that the rendered jobs run: `python -m train`, started by torchrun or alone.

Importing `train` or `train.config` imports no torch, so that jobspec can check a `train:` section cheaply.
The public names below are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train.data.sampler import ShardSampler
    from train.ddp.wrapper import CustomDDP
    from train.loop.trainer import Trainer
    from train.world.environment import World

__version__ = "0.1.0"
__all__ = ["CustomDDP", "ShardSampler", "Trainer", "World", "__version__"]

_MODULE_OF = {
    "CustomDDP": "train.ddp.wrapper",
    "ShardSampler": "train.data.sampler",
    "Trainer": "train.loop.trainer",
    "World": "train.world.environment",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
