"""What a resumed run reports if its checkpoint is already the end of the run."""

from __future__ import annotations

from train.checkpoints.same_run import NEEDS_ALL_EPOCHS
from train.config import TrainConfig


def already_ended(config: TrainConfig, epoch: int, step: int, evaluated_step: int) -> str | None:
    """Return which limits the checkpoint has reached, and how to train on; None if something is left to do.

    epoch: the next epoch to train.  A run that was stopped after its last step still has to be evaluated.
    """
    reached = {}
    if epoch > config.epochs:
        reached["--epochs"] = config.epochs
    if config.max_steps is not None and config.max_steps <= step == evaluated_step:
        reached["--max-steps"] = config.max_steps
    if not reached:
        return None
    if config.scheduler in NEEDS_ALL_EPOCHS:
        to_train_on = f"{config.scheduler} cannot be prolonged: start a new run in another --checkpoint-dir"
    else:
        to_train_on = "to train on, give " + " and ".join(f"a larger {name}" for name in reached)
    limits = " and ".join(f"{name}={value}" for name, value in reached.items())
    return f"the loaded checkpoint has already reached {limits}, so nothing is trained; {to_train_on}"
