"""How long a step takes on other links and more ranks: a cost model, which is fitted and checked against real steps.

    python -m benchmarks.scaling [--workload resnet18]        (as root: it makes network namespaces)

The model is fitted on two ranks, over links limited to 200 Mbit/s and 1 Gbit/s.  All-reduces of 16 KiB to 26 MiB give
the latency of a message and the overhead of a byte on the wire.  A computation beside them gets slower, which gives the
seconds of a core that a byte costs.
It is checked on 3, 4 and 6 ranks with 500 Mbit/s and 2 Gbit/s: predicted against measured training steps of CustomDDP,
all-reduce in float32.  For each number of ranks, the model gets the times at which buckets are full in a step without a
network.  Ranks share this machine's cores, so they compute more slowly than ranks on separate machines.

benchmarks/predictions.py extends the model to 1,024 nodes and says what is assumed; benchmarks/picture.py draws the
prediction.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cost_model import Fit, Schedule, fit_link, predict_step
from benchmarks.measure import RESULTS, machine, write_result
from benchmarks.network import missing_for_nodes, start_nodes
from benchmarks.predictions import predictions
from benchmarks.ranks import run_ranks
from benchmarks.scaling_ranks import measure_link, measure_steps
from benchmarks.workloads import WORKLOADS

FIT_RANKS = 2
FIT_MBIT_PER_S = (200.0, 1000.0)
SIZES_BYTES = (2**14, 2**18, 2**20, 2**22, 2**24, 26 * 2**20)
CHECK_RANKS = (3, 4, 6)
CHECK_MBIT_PER_S = (500.0, 2000.0)
ERROR_AT_MOST = 0.15
_TIMEOUT_S = 600.0


def main(argv: list[str] | None = None) -> int:
    """Measure, fit, predict and write results/scaling.json; return 1 if a prediction is off by more than 15 %."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=list(WORKLOADS), default="resnet18", help="what is trained")
    parser.add_argument("--repeats", type=int, default=5, help="how often each all-reduce and step is measured")
    parser.add_argument(
        "--check-ranks", type=int, nargs="+", default=list(CHECK_RANKS), help="numbers of ranks of the checked steps"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for scaling.json")
    options = parser.parse_args(argv)
    if missing := missing_for_nodes():
        parser.error(missing)

    with start_nodes(FIT_RANKS) as nodes:
        link_figures = run_ranks(
            measure_link,
            nodes,
            _TIMEOUT_S,
            rates=FIT_MBIT_PER_S,
            sizes_bytes=SIZES_BYTES,
            repeats=options.repeats,
        )[0]
        own_schedule = run_ranks(
            measure_steps, nodes, _TIMEOUT_S, workload=options.workload, rates=FIT_MBIT_PER_S, steps=options.repeats
        )[0]
    fit = fit_to(link_figures["all_reduces"])
    cores = machine()["cores"]
    core_s_per_byte = cores_of_a_byte(link_figures["slowdown"], fit, cores)
    print(
        f"latency {fit.alpha_s * 1e6:.0f} us per message; a byte takes {fit.overhead:.3f} times its time on the wire "
        f"and {core_s_per_byte * 1e9:.2f} ns of a core",
        flush=True,
    )

    rows = compare(own_schedule, FIT_RANKS, fit, core_s_per_byte, cores)
    schedules = {str(FIT_RANKS): own_schedule["schedule"]}
    for ranks in options.check_ranks:
        with start_nodes(ranks) as nodes:
            figures = run_ranks(
                measure_steps,
                nodes,
                _TIMEOUT_S,
                workload=options.workload,
                rates=CHECK_MBIT_PER_S,
                steps=options.repeats,
            )[0]
        schedules[str(ranks)] = figures["schedule"]
        rows += compare(figures, ranks, fit, core_s_per_byte, cores)
    checked = [row for row in rows if row["ranks"] != FIT_RANKS]
    for row in rows:
        print(in_words(row), flush=True)

    worst = max(abs(row["error"]) for row in checked)
    result = {
        "benchmark": "scaling",
        "what": "seconds of a training step predicted / measured - 1, on links and ranks that were not fitted",
        "alpha_s": fit.alpha_s,
        "overhead": fit.overhead,
        "core_s_per_byte": core_s_per_byte,
        "largest_error": worst,
        "error_at_most": ERROR_AT_MOST,
        "rows": rows,
        "all_reduces": link_figures["all_reduces"],
        "slowdown_of_compute": link_figures["slowdown"],
        "schedules": schedules,
        "predictions": predictions(schedule_of(own_schedule["schedule"]), fit),
        "settings": {
            "workload": options.workload,
            "batch_size_per_rank": WORKLOADS[options.workload].batch_size,
            "repeats": options.repeats,
            "threads": 1,
            "fit": {"ranks": FIT_RANKS, "mbit_per_s": list(FIT_MBIT_PER_S)},
        },
        "machine": machine(),
    }
    write_result(options.results, "scaling", result)
    print(f"largest error of a prediction: {worst:.1%} (target: at most {ERROR_AT_MOST:.0%})")
    return 0 if worst <= ERROR_AT_MOST else 1


def fit_to(all_reduces: Sequence[Mapping[str, float]]) -> Fit:
    """Fit the link to rows of measured all-reduces on FIT_RANKS ranks."""
    return fit_link(
        [int(row["bytes"]) for row in all_reduces],
        [FIT_RANKS] * len(all_reduces),
        [row["mbit_per_s"] * 1e6 / 8 for row in all_reduces],
        [row["seconds"] for row in all_reduces],
    )


def cores_of_a_byte(slowdown: float, fit: Fit, cores: int) -> float:
    """Return the seconds of a core for a byte sent, from how much slower a computation got beside all-reduces.

    This follows the rule of the cost model: a byte takes β + c·p/m instead of β, and computing advances by only β.
    """
    beta = fit.link(max(FIT_MBIT_PER_S)).beta_s_per_byte
    return max(0.0, (slowdown - 1) * beta * cores / FIT_RANKS)


def schedule_of(figures: Mapping[str, Any]) -> Schedule:
    """Make a Schedule from its fields as JSON holds them."""
    return Schedule(
        tuple(figures["bucket_bytes"]), tuple(figures["bucket_full_s"]), figures["backward_end_s"], figures["step_s"]
    )


def compare(
    figures: Mapping[str, Any], ranks: int, fit: Fit, core_s_per_byte: float, cores: int
) -> list[dict[str, float]]:
    """Return a row for each rate at which steps of `ranks` ranks were measured."""
    rows = []
    for row in figures["steps"]:
        link = fit.link(row["mbit_per_s"], core_s_per_byte)
        step = predict_step(schedule_of(figures["schedule"]), ranks, link, cores)
        rows.append(
            {
                "ranks": ranks,
                "mbit_per_s": row["mbit_per_s"],
                "measured_s": row["seconds"],
                "predicted_s": step.seconds,
                "error": step.seconds / row["seconds"] - 1,
                "overlap_share": step.overlap_share,
            }
        )
    return rows


def in_words(row: Mapping[str, float]) -> str:
    """Return one line of text about a row."""
    fitted = " (fitted on these links)" if row["ranks"] == FIT_RANKS else ""
    return (
        f"{row['ranks']:g} ranks, {row['mbit_per_s']:g} Mbit/s: predicted {row['predicted_s']:.3f} s, "
        f"measured {row['measured_s']:.3f} s, {row['error']:+.1%}{fitted}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
