"""The knowledge about a run that all parts of the training loop share."""

from __future__ import annotations

from dataclasses import dataclass

from train.checkpoints.folder import Checkpoints
from train.config import TrainConfig
from train.strategies import Context
from train.world.environment import World
from train.world.signals import StopSignal


@dataclass(frozen=True)
class Run:
    """One run as a rank sees it.

    context: the device, and the ranks that share the model.
    checkpoints: on rank 0, or on all ranks if the model is spread over them; None without --checkpoint-dir, and if
        the run only evaluates.
    stop: notes whether this rank was asked to stop.
    """

    config: TrainConfig
    world: World
    context: Context
    checkpoints: Checkpoints | None
    stop: StopSignal
