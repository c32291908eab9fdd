"""Time that this rank waits in its training steps, by the host's clock: for its input, and for the other ranks."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal, TypeVar

from torch.autograd import profiler
from torch.profiler import record_function

Cause = Literal["input", "communication"]
Item = TypeVar("Item")

_seconds: dict[Cause, float] = defaultdict(float)


@contextmanager
def waiting(cause: Cause) -> Iterator[None]:
    started = time.perf_counter()
    try:
        # As a profile shows it; without one it would cost more than all else here.
        with record_function(f"wait for {cause}") if profiler._is_profiler_enabled else nullcontext():
            yield
    finally:
        _seconds[cause] += time.perf_counter() - started


def waiting_for_each(items: Iterable[Item]) -> Iterator[Item]:
    """Iterate over `items`, and count the time until each is there as waiting for input."""
    iterator = iter(items)
    while True:
        with waiting("input"):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item


def take_seconds() -> dict[Cause, float]:
    """Return the seconds waited since the last call.  A cause without a wait is absent."""
    taken = dict(_seconds)
    _seconds.clear()
    return taken
