"""What is done with a full bucket of gradients, one way a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor


class Sync(Protocol):
    """Combines one bucket over all ranks without blocking the backward pass."""

    prescale: float
    """Every gradient is multiplied by this while it is copied into the bucket."""

    def start(self, flat: Tensor) -> Callable[[], object]:
        """Begin to replace `flat` (1-D) by its mean over the ranks, given that it was prescaled.

        Returns a function that waits for the end.  Called for the same buckets in the same order on all ranks.
        """
        ...
