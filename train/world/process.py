"""This process before it has met the others."""

import os

from train.world.attempt import Attempt
from train.world.environment import World
from train.world.signals import StopSignal, stop_with_parent


class Process:
    """The place of this process, its signals, and the attempt that has started it; made before torch is imported."""

    def __init__(self, world: World | None = None) -> None:
        self.stop = StopSignal()
        self.world = World.detect(os.environ) if world is None else world
        if self.world.launcher in ("torchrun", "procs"):
            stop_with_parent()
        self.attempt = Attempt(self.world)
