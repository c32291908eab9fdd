"""Time from a batch script's first line to its first process: the rendered script against one written by hand.

    python -m benchmarks.slurm_start [--rounds 40]

    ours    render.py slurm, launcher srun: checks of the nodes (preflight) and then the step
    peer    what people write: the variables of the rendezvous, and a single srun

Both start the same two processes on two nodes of the tests' Slurm (tests/e2e/slurm/cluster.py, as root), where
everything shares two slow cores.  The first line records the time before anything else; each process records when it
starts.  The two scripts take turns, one job at a time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, in_turns, machine, quartiles, write_result
from tests.e2e.slurm import observer
from tests.e2e.slurm.cluster import Cluster, missing

MORE_AT_MOST_S = 0.3
# A start of ours is an outlier if it takes this much longer than the peer's median: it waited for something.  Such a
# wait of srun takes two minutes here.
OUTLIER_S = 5.0
NODES = ["n1", "n2"]
FIRST_LINE = 'echo "$EPOCHREALTIME" > {folder}/"$SLURM_JOB_ID.first"\n'
BY_HAND = """\
#!/bin/bash
#SBATCH --job-name=by-hand
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=20
#SBATCH --output=by-hand-%j.log
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=29500
export WORLD_SIZE=$SLURM_NTASKS
srun --cpus-per-task=2 bash -c 'RANK=$SLURM_PROCID exec python3 {folder}/observe.py {folder} time'
"""


def main(argv: list[str] | None = None) -> int:
    """Measure and write results/slurm_start.json; return 1 if ours takes longer than it may, or has an outlier."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slurm_start", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="how often each script is started")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for slurm_start.json")
    options = parser.parse_args(argv)
    if reason := missing():
        parser.error(f"no Slurm: {reason}")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Cluster(folder, NODES) as cluster:
            ours = observer.rendered(cluster, folder, processes=1, what="time")
            variants: dict[str, Callable[[int], float]] = {
                "ours": partial(start, cluster, with_first_line(ours, folder)),
                "peer": partial(start, cluster, with_first_line(BY_HAND.format(folder=folder), folder)),
            }
            start(cluster, with_first_line(ours, folder), 0)  # not counted: it writes the byte code
            seconds = in_turns(variants, options.rounds)

    result = compare(seconds)
    settings = {"slurm": slurm_version(), "rounds": options.rounds, "nodes": len(NODES), "processes": len(NODES)}
    load = {"niceness": os.nice(0), "load_of_the_machine_at_the_end": list(os.getloadavg())}
    write_result(options.results, "slurm_start", result | {"settings": settings | load, "machine": machine()})
    print(f"ours - peer, median: {result['more_s']:.2f} s (target: at most {MORE_AT_MOST_S:g})")
    print(f"longest start: ours {max(seconds['ours']):.2f} s, peer {max(seconds['peer']):.2f} s")
    print(f"outliers of ours, over {OUTLIER_S:g} s more than the peer's median: {result['outliers_s']}")
    return 1 if result["more_s"] > MORE_AT_MOST_S or result["outliers_s"] else 0


def with_first_line(script: str, folder: Path) -> str:
    """Return the script with a first command that records the time; comments and `#SBATCH` lines stay before it."""
    lines = script.splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if line.strip() and not line.startswith("#"))
    return "".join([*lines[:first], FIRST_LINE.format(folder=folder), *lines[first:]])


def start(cluster: Cluster, script: str, number: int) -> float:
    """Run one job; return the seconds from its first line to its first process.  `number` is the round."""
    job = cluster.wait_for_end(cluster.submit(script))
    if job.state != "COMPLETED":
        raise RuntimeError(f"job {job.number} of round {number} is {job.state}:\n{cluster.logs()}")
    first = float((cluster.folder / f"{job.number}.first").read_text())
    return float(min(process["time"] for process in observer.seen(cluster.folder, job.number).values()) - first)


def compare(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Return how much longer ours takes, as median and quartiles over the rounds, and the outliers of ours."""
    more = [ours - peer for ours, peer in zip(seconds["ours"], seconds["peer"], strict=True)]
    usual = statistics.median(seconds["peer"])
    return {
        "benchmark": "slurm_start",
        "what": "from the batch script's first line to the first process, ours - a script with a single srun",
        "unit": "seconds",
        "more_s": statistics.median(more),
        "more_quartiles_s": quartiles(more),
        "more_at_most_s": MORE_AT_MOST_S,
        "outliers_s": [value for value in seconds["ours"] if value > usual + OUTLIER_S],
        "median_s": {variant: statistics.median(values) for variant, values in seconds.items()},
        "longest_s": {variant: max(values) for variant, values in seconds.items()},
        "seconds": seconds,
    }


def slurm_version() -> str:
    return subprocess.run(["slurmctld", "-V"], check=True, capture_output=True, text=True).stdout.split()[-1]


if __name__ == "__main__":
    sys.exit(main())
