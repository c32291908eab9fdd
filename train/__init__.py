"""The training package: `python -m train`, started by torchrun or alone, and its parts for a loop of your own.

Importing `train` or `train.config` imports no torch, so that jobspec can check a `train:` section cheaply.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train.check_loop import check
    from train.collectives.agreement import Stop
    from train.collectives.sync_batchnorm import SyncBatchNorm
    from train.data.sampler import ShardSampler
    from train.ddp.wrapper import CustomDDP
    from train.errors import UserError
    from train.run import Run
    from train.trainer import Trainer

__version__ = "0.2.0"
__all__ = ["CustomDDP", "Run", "ShardSampler", "Stop", "SyncBatchNorm", "Trainer", "UserError", "__version__", "check"]

_MODULE_OF = {
    "CustomDDP": "train.ddp.wrapper",
    "Run": "train.run",
    "ShardSampler": "train.data.sampler",
    "Stop": "train.collectives.agreement",
    "SyncBatchNorm": "train.collectives.sync_batchnorm",
    "Trainer": "train.trainer",
    "UserError": "train.errors",
    "check": "train.check_loop",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
