"""What is saved when a run fails: the state after its last whole step, by rank 0 alone, since others may be gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from train.records.progress import say

if TYPE_CHECKING:
    from train.loop.trainer import Trainer


def save_after_failure(trainer: Trainer) -> None:
    """Save the state after the last whole step, unless it is saved already; a second error only adds a line.

    No collective: losses that the ranks have not yet summed are missing from the epoch's mean in the checkpoint.
    """
    checkpoints = trainer.run.checkpoints
    if checkpoints is None or trainer.saved_step == trainer.steps_done or trainer.step.is_updating:
        return
    if trainer.config.spreads_model:
        if trainer.run.world.rank == 0:
            say("nothing is saved now, because others hold parts of the model; --resume=auto takes the last checkpoint")
        return
    try:
        checkpoints.save(trainer.steps_done, trainer.state_dict())
        checkpoints.wait()
    except Exception as error:
        say(f"step {trainer.steps_done} could not be saved: {error}")
    else:
        say(f"saved step {trainer.steps_done}, the last whole one; --resume=auto continues there")
