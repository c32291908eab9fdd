"""The processes of a DataLoader: forked from a small server, so that they share nothing with NCCL's or gloo's threads.

A process that was forked while other threads ran may wait forever for a lock that one of them held.  torch's note on
DistributedDataParallel asks for forkserver or spawn with NCCL.  The server imports torch once, then each worker starts
in milliseconds.
"""

import multiprocessing
import os
import signal
import threading
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext

from train.world.signals import SIGNALS

# What a worker needs: it unpickles the dataset, and Python imports the main module in each new process.
# The first makes `train` this package even if the working folder has a train.py.
_PRELOADED = ["jobspec.train", "train.__main__", "train.data.batches"]


def worker_context() -> ForkServerContext:
    """Return the context that starts workers, with its server running.

    A scheduler, like Ctrl-C in a terminal, signals all processes of a job.  But a rank needs its workers to finish its
    current step.  So the server, and every worker that it forks, has the signals blocked from its first instruction on.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    former = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        resource_tracker.ensure_running()  # this unblocks SIGTERM
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
    return context


def init_worker(worker: int) -> None:
    """Ignore the signals that ask for an end, and end with the rank, where torch's own check looks at the server."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_rank, daemon=True).start()


def _end_with_rank() -> None:
    rank = multiprocessing.parent_process()
    if rank is not None:
        rank.join()
        os._exit(0)
