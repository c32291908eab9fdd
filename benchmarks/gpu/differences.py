"""The largest difference between two runs."""

from __future__ import annotations

import math
from collections.abc import Sequence


def largest_difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the largest difference, as a share of their figure; NaN if a figure is not finite.

    max() alone would drop a NaN that is not the first, and NaN passes no limit that is written as `not … <= limit`.
    """
    pairs = list(zip(ours, theirs, strict=True))
    if not all(math.isfinite(figure) for pair in pairs for figure in pair):
        return math.nan
    return max(abs(mine / their - 1) for mine, their in pairs)
