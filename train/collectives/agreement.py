"""Questions that all ranks settle together before they continue: has one of them found a mistake, and do they stop?"""

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist

from train.collectives.broadcast import of_all_ranks
from train.errors import SharedError, UserError, ranks_by_value
from train.world.environment import World
from train.world.signals import EXIT_STOPPED, StopSignal
from train.world.threads import in_thread

# Limits of the time from a signal to the ranks' next agreement: in seconds (one step may take longer), in steps.
_REACTION_S, _MOST_STEPS = 1.0, 32
# Who works for longer than the second says so: a disk that does not answer would let all wait without a word.
_MEET_S, _LATE_S = 1.0, 30.0

Result = TypeVar("Result")


@contextmanager
def mistakes_shared_by_all_ranks() -> Iterator[None]:
    """Turn a UserError on some ranks into a SharedError on every rank.  The block must not run collectives."""
    mistake = None
    try:
        yield
    except UserError as error:
        mistake = str(error)
    mistakes = of_all_ranks(mistake)
    if ranks := ranks_by_value({rank: text for rank, text in enumerate(mistakes) if text is not None}):
        everywhere = len(ranks) == 1 and all(mistakes)
        raise SharedError("\n".join(ranks if everywhere else [f"{who}: {text}" for text, who in ranks.items()]))


def while_others_wait(world: World, work: Callable[[], Result], what: str = "reading files") -> Result:
    """Run `work`, which may take long, in a thread of this rank and return its result.  A collective.

    Meanwhile the ranks exchange a message each second: docs/design.md says why.
    `work` may run collectives only in a group that nothing else uses.
    Raises SharedError on all ranks if one of them raised UserError.
    """
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def run() -> Result:
        if device is not None:
            torch.cuda.set_device(device)  # each thread has its own choice
        return work()

    result = in_thread(run)
    ended, begun, told = torch.zeros(1), time.monotonic(), False
    while not ended:
        works = bool(wait([result], _MEET_S).not_done)
        if works and not told and (late_s := time.monotonic() - begun) > _LATE_S:
            told = True
            text = f"rank {world.rank} has been {what} for {late_s:.0f} s, and the run waits for it"
            print(f"warning: {text}. Does its disk answer?", file=sys.stderr, flush=True)
        ended.fill_(not works)
        dist.all_reduce(ended, op=dist.ReduceOp.MIN)
    with mistakes_shared_by_all_ranks():
        return result.result()


class Stopped(SystemExit):
    """Raised by all ranks after the same step, because at least one of them was asked to stop."""

    def __init__(self) -> None:
        super().__init__(EXIT_STOPPED)


class StopAgreement:
    """Lets all ranks of a job learn after the same step that one of them was asked to stop.

    The ranks ask each other about once in `_REACTION_S`, not after each step.  From the step time of the slowest rank
    all compute after how many steps they ask again: at most `_MOST_STEPS`, because steps may suddenly take longer.
    """

    def __init__(self, signal: StopSignal) -> None:
        self._signal = signal
        self.begin()

    def begin(self) -> None:
        """Expect steps of another length: ask after the first one, then after two, four and so on."""
        self._interval = self._steps_left = 1
        self._since = time.monotonic()

    def reached(self) -> bool:
        """Return True if all ranks stop here.  Call it on all of them, after each step."""
        self._steps_left -= 1
        if self._steps_left:
            return False
        step_s = (time.monotonic() - self._since) / self._interval
        joined = dist.is_initialized()  # one process of another's loop needs no group
        device = "cuda" if joined and dist.get_backend() == "nccl" else "cpu"
        largest = torch.tensor([float(self._signal.heard), step_s], dtype=torch.float64, device=device)
        if joined:
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        stop, slowest_s = largest.tolist()
        self._interval = max(1, min(2 * self._interval, _MOST_STEPS, int(_REACTION_S / slowest_s)))
        self._steps_left, self._since = self._interval, time.monotonic()
        return bool(stop)


class Stop(StopAgreement):
    """Tells all ranks of any training loop, after the same step, that one of them was asked to stop.

    Make it when the process group exists.  From then on SIGTERM, SIGUSR1 and Ctrl-C are only noted, however many come.
    `stop()` asks, once after each step on all ranks; if it returns True, save and leave.  A collective.

    >>> stop = Stop()
    >>> stop()
    False
    """

    def __init__(self) -> None:
        signal = StopSignal()
        signal.listen()
        super().__init__(signal)

    __call__ = StopAgreement.reached
