"""One process trains alone."""

from torch import nn

from train.errors import SharedError
from train.strategies import Context, Wrapped, replicated


def wrap(model: nn.Module, context: Context) -> Wrapped:
    """Return the model as it is; raise SharedError if there are several processes."""
    if context.world_size > 1:
        raise SharedError(
            f"--strategy=single trains one process, but {context.world_size} were started: "
            "each would train its own model. Use --strategy=custom_ddp"
        )
    return replicated(model, model)
