"""One process trains alone."""

from __future__ import annotations

from torch import nn

from train.errors import SharedError
from train.strategies import Setting


def wrap(model: nn.Module, setting: Setting) -> nn.Module:
    """The model as it is; SharedError if there are several processes."""
    if setting.world_size > 1:
        raise SharedError(
            f"--strategy=single trains one process, but {setting.world_size} were started: "
            "each would train a model of its own. Use --strategy=custom_ddp"
        )
    return model
