"""Time of a training step with CustomDDP, and with SyncBatchNorm: today's code against an older commit's.

    python -m benchmarks.before_after REV [--rounds 9] [--processes 2] [--workload NAME|all]

    before  the folder `train` of commit REV, unpacked into a temporary folder
    after   the folder `train` of this checkout, as it is

Each side has separate processes of one thread, which use gloo over loopback.  The sides take turns.  In a round each
side runs one step that is not counted and some that are; the other side waits.  The order of the sides alternates, so
that a drift of the machine cancels.  A process can be faster or slower than an equal one all its life, for example
because of where its memory lies.  So all processes are restarted after every three rounds.  Each round gives one
ratio, after / before; the median is the result.  With REV=HEAD the result shows the noise.

Both sides must do the same work.  At each start the benchmark compares their losses in float64 after equal numbers of
steps.  A difference ends the run with an error.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Any

from benchmarks.before_after_ranks import WORKLOADS
from benchmarks.commits import GitError, describe_checkout, unpack
from benchmarks.measure import RESULTS, machine, quartiles, ratios, write_result
from benchmarks.ranks import ROOT, python_path

# The median of after / before.
RATIO_AT_MOST = dict.fromkeys(WORKLOADS, 1.02) | {"resnet18_sync_batchnorm": 1.0}
ROUNDS_PER_START = 3
# A share of the first loss.  In float64, sums in another order differ by 1e-16 at first, and by less than 1e-12 after
# the few steps compared.  A larger difference means a different computation.
LOSS_TOLERANCE = 1e-9


def main(argv: list[str] | None = None) -> int:
    """Measure and write results/before_after.json; return 1 if the sides cannot be compared."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.before_after", description=__doc__.splitlines()[0])
    parser.add_argument("rev", metavar="REV", help="the older commit: a hash, a tag or a branch")
    parser.add_argument("--processes", type=int, default=2, help="ranks of each side on this machine")
    parser.add_argument("--workload", choices=[*WORKLOADS, "all"], default="all", help="what both sides train")
    parser.add_argument("--rounds", type=int, default=9, help="turns that each side takes")
    parser.add_argument("--steps", type=int, help="counted steps per turn; default: set by the workload")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for before_after.json")
    options = parser.parse_args(argv)
    names = list(WORKLOADS) if options.workload == "all" else [options.workload]
    steps = {name: options.steps or WORKLOADS[name].steps for name in names}
    load_before, compared = os.getloadavg()[0], {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            commits = {"before": unpack(options.rev, Path(folder)), **describe_checkout()}
        except GitError as error:
            parser.error(str(error))
        roots = {"before": Path(folder), "after": ROOT}
        for name in names:
            try:
                compared[name] = compare(*measure(name, roots, options.processes, options.rounds, steps[name]))
            except NotComparableError as error:
                print(f"{name}: {error}", file=sys.stderr)
                return 1
            low, high = compared[name]["ratio_quartiles"]
            print(f"{name}: after / before {compared[name]['ratio']:.3f} [{low:.3f}, {high:.3f}]", flush=True)

    result = {
        "benchmark": "before_after",
        "what": f"median time of a training step, this checkout / an older commit, {options.processes} processes",
        "unit": "step time / the older commit's",
        **{key: {name: part[key] for name, part in compared.items()} for key in next(iter(compared.values()))},
        "ratio_at_most": {name: RATIO_AT_MOST[name] for name in names},
        "met": {name: compared[name]["ratio"] <= RATIO_AT_MOST[name] for name in names},
        "loss_tolerance": LOSS_TOLERANCE,
        "commits": commits,
        "settings": {
            "processes": options.processes,
            "threads": 1,
            "backend": "gloo",
            "rounds": options.rounds,
            "rounds_per_start": ROUNDS_PER_START,
            "steps": steps,
        },
        "load_average": {"before": load_before, "after": os.getloadavg()[0]},
        "machine": machine(),
    }
    write_result(options.results, "before_after", result)
    return 0


class NotComparableError(Exception):
    """A side failed, or the two sides do different work."""


@dataclass(frozen=True)
class Ranks:
    """The running processes of one side; each waits on its stdin for its turn."""

    side: str
    processes: Sequence[subprocess.Popen[str]]

    def seconds_per_step(self, steps: int) -> float:
        try:
            for process in self.processes:
                assert process.stdin is not None
                process.stdin.write(f"{steps}\n")
                process.stdin.flush()
        except BrokenPipeError:
            raise self._failed() from None
        return float(self.answer())

    def answer(self) -> Any:
        """Return what rank 0 says next.  A rank whose peer is lost fails too, so that this wait always ends."""
        stdout = self.processes[0].stdout
        assert stdout is not None
        if line := stdout.readline():
            return json.loads(line)
        raise self._failed()

    def _failed(self) -> NotComparableError:
        return NotComparableError(f"a rank of the side {self.side!r} failed; the lines above say why")


@contextmanager
def start_ranks(side: str, root: Path, name: str, world_size: int) -> Iterator[Ranks]:
    """Start the processes of a side, which import `train` from `root`; stop them at the end."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(root)}
    script = str(ROOT / "benchmarks" / "before_after_ranks.py")
    processes: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank in range(world_size):
                command = [sys.executable, script, name, str(root), folder, str(rank), str(world_size)]
                # In a separate session, so that Ctrl-C reaches only this process, which then stops the ranks.
                process = subprocess.Popen(
                    command, env=environment, stdin=PIPE, stdout=PIPE, text=True, start_new_session=True
                )
                processes.append(process)
            yield Ranks(side, processes)
        finally:
            for process in processes:
                process.kill()
                process.communicate()


def measure(
    name: str, roots: Mapping[str, Path], world_size: int, rounds: int, steps: int
) -> tuple[dict[str, list[float]], float]:
    """Return the seconds per step by side and round, and the largest difference of the losses at any start."""
    seconds: dict[str, list[float]] = {side: [] for side in roots}
    largest_difference = 0.0
    for first in range(0, rounds, ROUNDS_PER_START):
        with ExitStack() as stack:
            ranks = [stack.enter_context(start_ranks(side, root, name, world_size)) for side, root in roots.items()]
            largest_difference = max(largest_difference, loss_difference(*(side.answer() for side in ranks)))
            for number in range(first, min(first + ROUNDS_PER_START, rounds)):
                for side in ranks if number % 2 == 0 else reversed(ranks):
                    seconds[side.side].append(side.seconds_per_step(steps))
    return seconds, largest_difference


def loss_difference(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the largest difference after equal steps, as a share of the first loss.

    Raises NotComparableError if the difference is above LOSS_TOLERANCE or a loss is not a number.
    """
    differences = [abs(old - new) / before[0] for old, new in zip(before, after, strict=True)]
    if not all(difference <= LOSS_TOLERANCE for difference in differences):
        raise NotComparableError(
            f"the losses of the two sides differ by up to {max(differences):.1e} of the first loss, more than "
            f"{LOSS_TOLERANCE:.0e}: the sides do different work, so their times say nothing.  "
            f"Before: {before}; after: {after}"
        )
    return max(differences)


def compare(seconds: Mapping[str, Sequence[float]], largest_difference: float) -> dict[str, Any]:
    """Return the ratios of one workload."""
    by_round = ratios(seconds["after"], seconds["before"])
    return {
        "ratio": statistics.median(by_round),
        "ratio_quartiles": quartiles(by_round),
        "ratios": by_round,
        "median_step_seconds": {side: statistics.median(values) for side, values in seconds.items()},
        "loss_difference": largest_difference,
        "step_seconds": seconds,
    }


if __name__ == "__main__":
    raise SystemExit(main())
