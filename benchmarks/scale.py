"""Measure starts of many simulated nodes, which share this machine's cores, in processor time; draw docs/scale.png."""

import re
import tempfile
from functools import partial
from pathlib import Path
from statistics import linear_regression, median

import matplotlib

from benchmarks.measure import in_turns, machine, make_parser, median_ratio, write_result
from benchmarks.ranks import ROOT
from jobspec.artifact import render
from tests.e2e.slurm import releases
from tests.e2e.slurm.crowd import Crowd

FITTED, HELD_OUT = (4, 16, 64, 256), (32, 128)
MODELLED = [1000 * 2**power for power in range(5)]
SPEC = "name: scale\nnodes: {}\nprocs_per_node: 8\ndevice: cpu\nresources: {{cpus: 1}}\ncommand: [mine.py]\n"
BY_HAND = """#!/bin/bash
#SBATCH --nodes={} --ntasks-per-node=1
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --ntasks-per-node=1 bash -c 'exec torchrun --node-rank="$SLURM_NODEID" mine.py'
"""
TIMES = {"all_s": "all nodes, one after the other", "central_s": "slurmctld and srun"}


def main() -> None:
    """Run it."""
    options = make_parser("scale", __doc__ or "", 5, "starts of each kind and size").parse_args()
    sizes = sorted(FITTED + HELD_OUT)
    nodes, forky = [f"n{number + 1}" for number in range(sizes[-1])], releases.find("forky")
    with tempfile.TemporaryDirectory() as folder, (cluster := Crowd(Path(folder), nodes, 3600, release=forky)):
        (cluster.folder / "bin" / "torchrun").symlink_to("/bin/true")
        jobs = {f"{kind} {n}": partial(start, cluster, kind, n) for n in sizes for kind in ("ours", "hand")}
        starts = in_turns(jobs, options.rounds)
    medians = {name: {key: median(row[key] for row in rows) for key in rows[0]} for name, rows in starts.items()}
    lines = {key: linear_regression(FITTED, [medians[f"ours {n}"][key] for n in FITTED]) for key in TIMES}
    model = {key: {n: line.intercept + n * line.slope for n in (*sizes, *MODELLED)} for key, line in lines.items()}
    seconds = {name: [row["all_s"] for row in rows] for name, rows in starts.items()}
    ratio = {n: median_ratio(seconds[f"ours {n}"], seconds[f"hand {n}"]) for n in sizes}
    result = {"ratio_to_hand": ratio, "medians": medians, "model": model, "machine": machine()}
    write_result(options.results, "scale", result)

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for color, (key, label) in enumerate(TIMES.items()):
        panel.plot([*model[key]], [*model[key].values()], f"C{color}--", label=f"{label}: model")
        panel.plot(sizes, [medians[f"ours {n}"][key] for n in sizes], f"C{color}o", label="measured")
    panel.set(xscale="log", yscale="log", xlabel="nodes", ylabel="processor time of a start (s)")
    panel.legend()
    figure.savefig(ROOT / "docs" / "scale.png", dpi=120)


def start(cluster: Crowd, kind: str, nodes: int, number: int) -> dict[str, float]:
    """Return the processor time of a job whose torchrun does nothing, and its requests to slurmctld."""
    (spec := cluster.folder / "job.yaml").write_text(SPEC.format(nodes))
    script = render("slurm", str(spec)) if kind == "ours" else BY_HAND.format(nodes)
    spent, central_s = cluster.processor_s(), -cluster.processor_s("slurmctld")
    requests = cluster.finish(f"{script}\ntimes >times\n").total()
    of_script = re.findall(r"0m([\d.]+)s", (cluster.folder / "times").read_text())
    central_s += cluster.processor_s("slurmctld") + sum(map(float, of_script))
    return {"all_s": cluster.processor_s() - spent, "central_s": central_s, "requests": requests}


if __name__ == "__main__":
    main()
