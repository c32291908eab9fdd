"""An exponential moving average of the weights, which generalises better than the last weights do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class Ema:
    """The average of the weights after each step; a step counts `decay` times as much as the one after it.

    In step n at most (1 + n) / (10 + n) of the past counts, so that the random start is soon forgotten.
    Source of this limit: TensorFlow's ExponentialMovingAverage, `num_updates`.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self._params = dict(model.named_parameters())
        self._averages = {name: param.detach().clone() for name, param in self._params.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take the present weights into the average."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(list(self._averages.values()), list(self._params.values()), 1 - decay)

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Give the model the averages as its weights, in the block only."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, param in self._params.items():
            weights = param.clone()
            param.copy_(self._averages[name])
            self._averages[name].copy_(weights)

    def state_dict(self) -> dict[str, Any]:
        """Return the averages and how many steps they have taken in."""
        return {"updates": self.updates, "averages": self._averages}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with what state_dict() returned."""
        self.updates = state["updates"]
        for name, average in self._averages.items():
            average.copy_(state["averages"][name])
