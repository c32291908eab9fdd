"""Share of communication that runs during backward, from a profile."""

from collections.abc import Callable, Sequence

from torch.profiler import ProfilerActivity, profile

Interval = tuple[float, float]

_ALL_REDUCE = "gloo:all_reduce"
_LAST_OF_BACKWARD = "torch::autograd::AccumulateGrad"


def overlap_share_of(step: Callable[[], None]) -> float:
    """Return the share of communication in one step on this rank that lies before the end of backward's last operator.

    Communication is the time in which an all-reduce is under way: from when it is handed to gloo until it is done.
    """
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        step()
    events = [(event.name, (event.time_range.start, event.time_range.end)) for event in recorded.events()]
    return overlap_share(
        [interval for name, interval in events if name == _ALL_REDUCE],
        max(end for name, (_, end) in events if name == _LAST_OF_BACKWARD),
    )


def overlap_share(all_reduces: Sequence[Interval], backward_end: float) -> float:
    """Return the share of the union of `all_reduces` (start, end) that lies before `backward_end`.

    Raises ValueError if there are none: then there is no share.
    """
    total = overlapped = 0.0
    covered = float("-inf")
    for start, end in sorted(all_reduces):
        start = max(start, covered)
        total += max(0.0, end - start)
        overlapped += max(0.0, min(end, backward_end) - start)
        covered = max(covered, end)
    if not total:
        raise ValueError("no all-reduce was recorded")
    return overlapped / total
