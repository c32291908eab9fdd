"""Predict the seconds of a data-parallel training step from link, bucket schedule and number of ranks; no torch.

A ring all-reduce of n bytes over p ranks is 2(p−1) messages of n/p bytes one after the other:

    T(n, p) = 2(p−1) (α + n/p · β)

α is the latency of a message in seconds, β the seconds of a byte on the wire.  Buckets travel in the order in which
backward fills them; a bucket starts when it is full and the previous one is done.

Moving a byte also costs c seconds of a core.  If p ranks share m cores, none of them computes for c·p/m seconds.  So
while backward runs, a byte takes β + c·p/m, and only β of it is hidden.  Once all ranks only wait for the network,
there are enough cores.
Sources: Thakur et al., IJHPCA 19 (2005), for the ring; Li et al., VLDB 2020 (arXiv:2006.15704), for the buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BITS_PER_BYTE = 8


@dataclass(frozen=True)
class Link:
    """What connects a rank with its neighbour in the ring.

    alpha_s: seconds per message, whatever its size.
    beta_s_per_byte: seconds per byte, headers of the packets included.
    core_s_per_byte: seconds of a core that the rank spends on each byte that it sends (c above).
    """

    alpha_s: float
    beta_s_per_byte: float
    core_s_per_byte: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """A training step without a network, all times in seconds from its beginning.

    bucket_bytes, bucket_full_s: size of each bucket and when it is full, in the order in which buckets travel.
    backward_end_s: when the last gradient is there.
    step_s: when the optimizer is done.
    """

    bucket_bytes: tuple[int, ...]
    bucket_full_s: tuple[float, ...]
    backward_end_s: float
    step_s: float


@dataclass(frozen=True)
class Step:
    """A predicted step: its seconds, and the share of communication that runs while backward computes."""

    seconds: float
    overlap_share: float


def bytes_sent(num_bytes: float, ranks: int) -> float:
    """Return the bytes that each rank sends in a ring all-reduce of `num_bytes`."""
    return 2 * (ranks - 1) / ranks * num_bytes


def all_reduce_seconds(num_bytes: float, ranks: int, link: Link) -> float:
    """Return the seconds of a ring all-reduce while no rank computes."""
    return 2 * (ranks - 1) * link.alpha_s + bytes_sent(num_bytes, ranks) * link.beta_s_per_byte


def predict_step(schedule: Schedule, ranks: int, link: Link, cores: float = float("inf")) -> Step:
    """Predict the step on `ranks` ranks that share `cores` cores; with infinitely many, moving bytes delays nothing."""
    now = computed = overlapped = total = 0.0
    for size, full_s in zip(schedule.bucket_bytes, schedule.bucket_full_s, strict=True):
        # No bucket is under way: computing continues undisturbed until this one is full.
        if computed < full_s:
            now, computed = now + full_s - computed, full_s
        wire_s = all_reduce_seconds(size, ranks, link)
        taken_s = bytes_sent(size, ranks) * link.core_s_per_byte * ranks / cores
        total += wire_s
        # While backward computes, time on the wire hides computing; the cores' time for the bytes delays both.
        beside_s = min(wire_s, schedule.backward_end_s - computed)
        if wire_s > 0:
            now += wire_s + taken_s * beside_s / wire_s
            computed += beside_s
            overlapped += beside_s
    now += schedule.backward_end_s - computed
    return Step(now + schedule.step_s - schedule.backward_end_s, overlapped / total if total else 1.0)


def fit_link(num_bytes: Sequence[int], ranks: Sequence[int], rates: Sequence[float], seconds: Sequence[float]) -> Fit:
    """Fit α, and how much more than its bytes a message occupies the wire, to measured all-reduces.

    Args:
        num_bytes, ranks, rates, seconds: lists with one entry for each measurement; rates in bytes per second.
    The fit is least squares of the relative error, so that short messages count as much as long ones.
    """
    # seconds ≈ alpha · messages + overhead · wire, each row divided by its seconds: normal equations of two unknowns.
    rows = [
        (2 * (p - 1) / s, bytes_sent(n, p) / rate / s)
        for n, p, rate, s in zip(num_bytes, ranks, rates, seconds, strict=True)
    ]
    aa, ab, bb = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a1, b1 = (sum(row[i] for row in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    if determinant <= 1e-12 * aa * bb:
        raise ValueError("latency and bandwidth cannot be told apart: measure all-reduces of at least two sizes")
    return Fit(alpha_s=(a1 * bb - b1 * ab) / determinant, overhead=(b1 * aa - a1 * ab) / determinant)


@dataclass(frozen=True)
class Fit:
    """The result of a fit, for links of any rate: latency, and the time on the wire / the time of the bytes alone."""

    alpha_s: float
    overhead: float

    def link(self, mbit_per_s: float, core_s_per_byte: float = 0.0) -> Link:
        """Return a link with another rate."""
        return Link(self.alpha_s, self.overhead * BITS_PER_BYTE / (mbit_per_s * 1e6), core_s_per_byte)
