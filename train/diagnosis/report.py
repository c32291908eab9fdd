"""The measurements as lines and as a picture for a person, and the problems that they show as sentences."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from train.collectives.broadcast import of_all_ranks
from train.diagnosis import speed
from train.diagnosis.card import Card, in_columns
from train.diagnosis.meeting import named
from train.diagnosis.speed import AllReduce, Clock, Ranks
from train.diagnosis.watch import Watch
from train.errors import UserError

# torchrun's c10d rendezvous ends nodes whose heartbeat is 5 s or more away by the wall clocks of the nodes.
_CLOCK_S = 1.0
# A rank is slow above this multiple of the median time; a link, below this part of the median rate of its kind.
_STRAGGLER, _LINK_PART = 2.0, 0.2
_LINKS_SHOWN = 8
_THROTTLED = 0.1
_ALONE = "only one process: start several to check their connections (torchrun --nproc-per-node 2)"


@dataclass(frozen=True)
class Report:
    """The results that rank 0 has at the end.

    wrong: the ranks at which a collective gave a wrong answer, by its name; an empty list if all are right.
    links: bytes per second from each rank to the next.
    compute_s: seconds for the same work, by rank; throttled: parts of a second in which CPU limits stopped it.
    """

    cards: Sequence[Card]
    wrong: dict[str, list[int]]
    all_reduce: Sequence[AllReduce]
    links: Sequence[float]
    clocks: Sequence[Clock]
    compute_s: Sequence[float]
    throttled: Sequence[float]


def measured(ranks: Ranks, cards: Sequence[Card], watch: Watch) -> Report:
    """Run all checks, one after the other on all ranks together."""
    wrong: dict[str, list[int]] = {}
    for check in speed.CHECKS:
        name = check.__name__.replace("_", "-")
        watch.doing(name)
        wrong[name] = [rank for rank, right in enumerate(of_all_ranks(check(ranks))) if not right]
    watch.doing("timing the links")
    links = speed.measure_links(ranks)
    watch.doing("timing all-reduce")
    all_reduce = speed.measure_all_reduce(ranks)
    watch.doing("comparing the clocks")
    clocks = speed.measure_clocks(ranks)
    watch.doing("timing a matrix product")
    return Report(cards, wrong, all_reduce, links, clocks, *speed.measure_compute(ranks))


def lines(report: Report) -> str:
    answers = [f"{name} {'wrong' if ranks else 'right'}" for name, ranks in report.wrong.items()]
    connections = _connections(report) if len(report.cards) > 1 else [_ALONE]
    slow = max(report.compute_s)
    parts = [
        f"answers over {report.cards[0].backend}: {', '.join(answers)}",
        *connections,
        f"computing: the same matrix product takes {_seconds(min(report.compute_s))} to {_seconds(slow)}; "
        f"slowest is rank {report.compute_s.index(slow)}",
    ]
    return "\n".join(parts)


def _connections(report: Report) -> list[str]:
    rows = [("all-reduce of", "takes", "each rank sends")]
    for one in report.all_reduce:
        size = f"{one.size >> 10} KiB" if one.size < 1 << 20 else f"{one.size >> 20} MiB"
        rows.append((size, _seconds(one.seconds), _rate(one.bytes_per_second)))
    slowest = sorted(enumerate(report.links), key=itemgetter(1))[:_LINKS_SHOWN]
    farthest = max(report.clocks, key=lambda clock: abs(clock.offset_s))
    return [
        in_columns(rows),
        "links" + (f" (the {_LINKS_SHOWN} slowest)" if len(report.links) > _LINKS_SHOWN else ""),
        *[f"  rank {rank} to {(rank + 1) % len(report.links)}: {_rate(rate)}" for rank, rate in slowest],
        f"clocks: rank {farthest.rank} differs most from rank 0, by {farthest.offset_s * 1e3:+.1f} ms "
        f"(± {farthest.error_s * 1e3:.1f} ms)",
    ]


def problems(report: Report, slow_mbit_s: float) -> list[str]:
    cards, typical_s = report.cards, statistics.median_low(report.compute_s)
    places = [f"rank {card.rank} ({card.host})" for card in cards]
    return [
        *[f"{name} gives a wrong answer on {named(ranks)}" for name, ranks in report.wrong.items() if ranks],
        *_different("versions of torch differ", [card.torch for card in cards]),
        *_different("versions of Python differ", [card.python for card in cards]),
        *_different("the code of train/ differs", [card.code for card in cards]),
        *_gloo_addresses(cards),
        *_slow_links(report, places, slow_mbit_s),
        *[
            f"the clock of {places[clock.rank]} is {abs(clock.offset_s):.1f} s "
            f"{'ahead of' if clock.offset_s > 0 else 'behind'} rank 0's: switch on NTP there. Elastic rendezvous "
            "(c10d) ends nodes whose clocks are some seconds apart"
            for clock in report.clocks
            if abs(clock.offset_s) - clock.error_s > _CLOCK_S
        ],
        *[
            f"{places[rank]} is slow: the same matrix product takes {_seconds(seconds)}, on the median rank "
            f"{_seconds(typical_s)}. All ranks wait for it in each step: look for other programs, a hot or throttled "
            "GPU, or fewer cores"
            for rank, seconds in enumerate(report.compute_s)
            if seconds > _STRAGGLER * typical_s
        ],
        *[
            f"{places[rank]} was stopped for {part:.0%} of a second by the CPU limit of its cgroup (a container, a "
            "Slurm job): ask for more CPUs, or start fewer processes and threads"
            for rank, part in enumerate(report.throttled)
            if part > _THROTTLED
        ],
    ]


def _different(head: str, values: Sequence[str]) -> list[str]:
    kinds = sorted(set(values))
    if len(kinds) == 1:
        return []
    listed = "; ".join(f"{kind} on {named([rank for rank, x in enumerate(values) if x == kind])}" for kind in kinds)
    return [f"{head}: {listed}. Use the same image or environment on all nodes"]


def _gloo_addresses(cards: Sequence[Card]) -> list[str]:
    """Name the hosts whose gloo others cannot reach in a script that chooses no interface."""
    host_of = {card.gloo_address: card.host for card in reversed(cards)}
    bad = [
        card
        for card in cards
        if (address := card.gloo_address) is not None
        and (address.startswith("127.") or address == "::1" or host_of[address] != card.host)
    ]
    if not bad or len({card.host for card in cards}) == 1:
        return []
    names = ", ".join(sorted({f"{card.host} is {card.gloo_address}" for card in bad}))
    return [
        "a script of your own would hang or fail over gloo, which listens at the address of the host's own name: "
        f"{names} there. Correct /etc/hosts (Debian has a line 127.0.1.1), or set "
        f"GLOO_SOCKET_IFNAME={bad[0].interface}; python -m train chooses the interface itself"
    ]


def _slow_links(report: Report, places: Sequence[str], slow_mbit_s: float) -> list[str]:
    """Name the links below the limit, and those far below the median of their kind: inside of hosts, or between."""
    num = len(report.links)
    inside = [report.cards[rank].host == report.cards[(rank + 1) % num].host for rank in range(num)]
    found = []
    for rank, rate in enumerate(report.links):
        of_kind = [other for other, kind in zip(report.links, inside, strict=True) if kind == inside[rank]]
        typical = statistics.median(of_kind)
        slow = f"the link from {places[rank]} to {places[(rank + 1) % num]} is slow: {_rate(rate)}"
        if rate * 8 < slow_mbit_s * 1e6:
            found.append(
                f"{slow}, below {slow_mbit_s:g} Mbit/s. Check which interface the ranks use (above), its speed "
                "(ethtool) and what else uses it; --slow-mbit-s sets the limit"
            )
        elif rate < _LINK_PART * typical:
            found.append(f"{slow}; the median is {_rate(typical)}")
    return found


def _seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"


def _rate(bytes_per_second: float) -> str:
    bits = 8 * bytes_per_second
    return f"{bits / 1e9:.1f} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.1f} Mbit/s"


def draw(report: Report, file: Path) -> None:
    """Write the picture as PNG, or in the format that the ending of `file` names; raise UserError if it cannot."""
    from matplotlib.figure import Figure  # without pyplot: no window, no state

    figure = Figure(figsize=(11, 4), layout="constrained")
    times, rates, links = figure.subplots(1, 3)
    sizes = [one.size for one in report.all_reduce]
    times.loglog(sizes, [one.seconds * 1e3 for one in report.all_reduce], marker="o")
    times.set(title=f"all-reduce over {report.cards[0].backend}", xlabel="message [bytes]", ylabel="time [ms]")
    rates.loglog(sizes, [one.bytes_per_second * 8 / 1e6 for one in report.all_reduce], marker="o")
    rates.set(title="what each rank sends", xlabel="message [bytes]", ylabel="rate [Mbit/s]")
    for axes in (times, rates):
        axes.grid(True, alpha=0.3)
    names = [f"{rank} → {(rank + 1) % len(report.links)}" for rank in range(len(report.links))]
    links.bar(names, [rate * 8 / 1e6 for rate in report.links])
    links.set(title="links", xlabel="from rank → to rank", ylabel="rate [Mbit/s]", ylim=(0, None))
    links.tick_params(axis="x", labelrotation=0 if len(names) <= 8 else 90)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=120)
    except (OSError, ValueError) as error:
        raise UserError(f"--picture: cannot write {file}: {error}") from None
