"""One process trains alone."""

from torch import nn

from train.config import setting
from train.errors import SharedError
from train.strategies import Context, Wrapped, replicated


def wrap(model: nn.Module, context: Context) -> Wrapped:
    """Return the model as it is; raise SharedError if there are several processes."""
    if context.world_size > 1:
        raise SharedError(
            f"{setting('strategy', 'single')} trains one process, but {context.world_size} were started: "
            f"each would train its own model. Use {setting('strategy', 'custom_ddp')}"
        )
    return replicated(model, model)
