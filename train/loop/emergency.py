"""The save after a failure, by rank 0 alone, because other ranks may be gone: the state after the last whole step."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from train.errors import first_line
from train.loop.run import Run
from train.loop.step import Step
from train.records.progress import say

_IDLE_S = 5.0


def save_after_failure(
    run: Run,
    step: Step,
    steps_done: int,
    saved_step: int,
    state_dict: Callable[[], dict[str, Any]],
    failure: Exception,
) -> None:
    """Save the state after the last whole step, unless it is saved already; an error of the save is only printed.

    On a GPU the failure is printed first, and nothing is saved if the GPU still works: a message of NCCL to a rank that
    is gone never ends, and a copy of the weights would wait for it.

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
    if run.context.device.type == "cuda":
        say(f"rank 0 failed: {first_line(failure)}")
        if not _is_idle(run.context.device):
            say(
                "nothing is saved now, because the GPU waits for another rank; "
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


def _is_idle(device: torch.device) -> bool:
    """Return True if the device ends all its work soon."""
    deadline = time.monotonic() + _IDLE_S
    with suppress(RuntimeError):  # an error of the device: it ends nothing any more
        event = torch.cuda.current_stream(device).record_event()
        while time.monotonic() < deadline:
            if event.query():
                return True
            time.sleep(0.05)
    return False
