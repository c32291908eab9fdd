"""Note which collectives a process starts, so that ranks can be compared one collective at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import torch.distributed as dist

_NAMES = ("all_reduce", "broadcast", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor")


@contextmanager
def noted() -> Iterator[list[str]]:
    """Yield a list that gets the name, the type and the size of each collective that is started in the block."""
    notes: list[str] = []
    originals = {name: getattr(dist, name) for name in _NAMES}

    def noting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def collective(first: Any, *args: Any, **kwargs: Any) -> Any:
            tensor = first[0] if isinstance(first, list) else first
            notes.append(f"{name} of {tensor.numel()} {str(tensor.dtype).removeprefix('torch.')}")
            return original(first, *args, **kwargs)

        return collective

    for name, original in originals.items():
        setattr(dist, name, noting(name, original))
    try:
        yield notes
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def numbers_in(note: str) -> int:
    """Return how many numbers a collective sends, given its note."""
    return int(note.split(" of ")[1].split()[0])


def first_difference(of_ranks: Sequence[Sequence[Sequence[str]]]) -> str | None:
    """Return the first collective in which two ranks differ, given each rank's notes step by step; None if none."""
    for step, pair in enumerate(zip_longest(*of_ranks, fillvalue=()), start=1):
        for number, (first, second) in enumerate(zip_longest(*pair, fillvalue="none"), start=1):
            if first != second:
                return f"collective {number} of step {step} is {first} on rank 0 and {second} on rank 1"
    return None
