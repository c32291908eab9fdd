"""The tail of an epoch: the code after its batches.  A run that is saved in it runs it again after a restart."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from torch import optim

from train.checkpoints.folder import on_host


class Tail:
    """Remembers what the tail may change, such as schedulers and the rates of optimizers, to undo it."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, Any]] = []

    def begin(self, things: Iterable[Any], saves_here: bool) -> None:
        """Remember the states of things that checkpoints hold; saves_here: this rank writes them.  A collective."""
        for thing in () if self._before else things:
            if isinstance(thing, optim.Optimizer):
                groups = [{key: x for key, x in group.items() if key != "params"} for group in thing.param_groups]
                self._before.append((thing, deepcopy(groups)))
                continue
            state = thing.state_dict()
            if saves_here:
                self._before.append((thing, deepcopy(on_host(state))))

    def end(self) -> None:
        self._before = []

    def undo(self) -> None:
        """Give the things back what they had at the end of the batches; do nothing outside of the tail."""
        for thing, before in self._before:
            if isinstance(thing, optim.Optimizer):
                for group, former in zip(thing.param_groups, before, strict=True):
                    group.update(former)
            else:
                thing.load_state_dict(before)
