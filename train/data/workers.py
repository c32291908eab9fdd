"""The processes of a DataLoader: forked from the rank, as those of a plain DataLoader on Linux.

So a script needs no `if __name__ == "__main__"`, what it reads need not be picklable, and data in memory is shared.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from train.world.signals import SIGNALS, stop_with_parent


@contextmanager
def deaf() -> Iterator[None]:
    """Let processes that are forked in the block have the signals that ask for an end blocked from the beginning.

    A scheduler, like Ctrl-C in a terminal, signals all processes of a job.  But a rank needs its workers to finish its
    current step.
    """
    former = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def init_worker(worker: int) -> None:
    """End at once with the rank: a worker also has its connections open, and its peers would not see them close."""
    stop_with_parent(signal.SIGKILL)
