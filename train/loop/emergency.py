"""The save after a failure, by rank 0 alone, because other ranks may be gone: the state after the last whole step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from train.loop.run import Run
from train.loop.step import Step
from train.records.progress import say


def save_after_failure(
    run: Run, step: Step, steps_done: int, saved_step: int, state_dict: Callable[[], dict[str, Any]]
) -> None:
    """Save the state after the last whole step, unless it is saved already; an error of the save is only printed.

    Not a collective: losses that the ranks have not yet summed are missing from the epoch's mean in the checkpoint;
    the epoch's record says of how many samples it is.
    """
    checkpoints = run.checkpoints
    if checkpoints is None or saved_step == steps_done or step.is_updating:
        return
    if run.config.spreads_model:
        if run.world.rank == 0:
            say(
                "nothing is saved now, because other ranks hold parts of the model; "
                "--resume=auto continues from the last checkpoint"
            )
        return
    try:
        checkpoints.save(steps_done, state_dict())
        checkpoints.wait()
    except Exception as error:
        say(f"step {steps_done} could not be saved: {error}")
    else:
        say_saved(run, steps_done)


def say_saved(run: Run, steps_done: int) -> None:
    """Let rank 0 say which step a run that failed has saved, if it has a folder for checkpoints."""
    if run.checkpoints is not None and run.world.rank == 0:
        say(f"saved the last complete step, {steps_done}; --resume=auto continues there")
