"""Time of a training step over a slow link, by wire format: CustomDDP against native DDP with torch's hooks.

    python -m benchmarks.ddp_network [--mbit-per-s 1000 200]        (as root: it makes network namespaces)

There are two ranks, each in its own network namespace, joined by a link.  tc (tbf) limits each rank's sending to the
given rate.

    fp32        ours against the fastest of three native variants (see benchmarks/ddp.py)
    bf16        ours against that fastest native fp32 variant, and against native's bf16_compress_hook

Variants take turns as in benchmarks/ddp.py.  Losses of the fp32 variants must agree.  The bf16 variants round, so
their losses are reported, not compared.
"""

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.measure import machine, make_parser, median_ratio, quartiles, ratios, write_result
from benchmarks.network import missing_for_nodes, start_nodes
from benchmarks.ranks import run_ranks
from benchmarks.steps import time_variants
from benchmarks.variants import NATIVE
from benchmarks.workloads import WORKLOADS

VARIANTS = ("ours", "ours_bf16", *NATIVE, "native_bf16")
# Our variant, its peer ("native": the fastest fp32 variant), and the target: a median ratio of at most this.
COMPARISONS = {
    "fp32": ("ours", "native", 0.97),
    "bf16 / native fp32": ("ours_bf16", "native", 0.60),
    "bf16": ("ours_bf16", "native_bf16", 1.0),
}
RANKS = 2
LOSS_TOLERANCE = 0.01
_TIMEOUT_S = 800.0


def main(argv: list[str] | None = None) -> int:
    """Measure and write results/ddp_network_RATE.json; return 1 if the losses of the fp32 variants do not agree."""
    parser = make_parser("ddp_network", __doc__, 5, "turns that each variant takes")
    parser.add_argument("--mbit-per-s", type=int, nargs="+", default=[1000, 200], help="rates of the link")
    parser.add_argument("--workload", choices=list(WORKLOADS), default="resnet18", help="what is trained")
    parser.add_argument("--steps", type=int, default=2, help="counted steps per turn")
    options = parser.parse_args(argv)
    if missing := missing_for_nodes():
        parser.error(missing)

    agree = True
    shared = {"workload": options.workload, "rounds": options.rounds, "steps": options.steps}
    settings = shared | {"batch_size_per_rank": WORKLOADS[options.workload].batch_size, "ranks": RANKS, "threads": 1}
    for rate in options.mbit_per_s:
        task = shared | {"variants": VARIANTS, "mbit_per_s": rate}
        with start_nodes(RANKS) as nodes:
            outcome = run_ranks(time_variants, nodes, _TIMEOUT_S, **task)[0]
        result = compare(outcome) | {"settings": settings | {"mbit_per_s": rate}, "machine": machine()}
        write_result(options.results, f"ddp_network_{rate}", result)
        agree &= result["losses_agree"]
        print(f"{rate} Mbit/s\n{in_words(result)}", flush=True)
    return 0 if agree else 1


def compare(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result at one rate."""
    seconds, losses = outcome["step_seconds"], outcome["losses"]
    best = min(NATIVE, key=lambda variant: statistics.median(seconds[variant]))
    pairs = {name: (ours, best if peer == "native" else peer) for name, (ours, peer, _) in COMPARISONS.items()}
    by_round = {name: ratios(seconds[ours], seconds[peer]) for name, (ours, peer) in pairs.items()}
    difference = max(
        abs(theirs / mine - 1)
        for variant in NATIVE
        for mine, theirs in zip(losses["ours"], losses[variant], strict=True)
    )
    return {
        "benchmark": "ddp_network",
        "what": "median time of a training step over a limited link, ours / peer",
        "unit": "step time / peer's",
        "ratio": {name: median_ratio(seconds[ours], seconds[peer]) for name, (ours, peer) in pairs.items()},
        "ratio_at_most": {name: at_most for name, (_, _, at_most) in COMPARISONS.items()},
        "ratio_quartiles": {name: quartiles(values) for name, values in by_round.items()},
        "ratios": by_round,
        "best_native": best,
        "median_step_seconds": {variant: statistics.median(values) for variant, values in seconds.items()},
        "last_loss": {variant: values[-1] for variant, values in losses.items()},
        "loss_difference": difference,
        "loss_tolerance": LOSS_TOLERANCE,
        "losses_agree": difference <= LOSS_TOLERANCE,
        "step_seconds": seconds,
    }


def in_words(result: Mapping[str, Any]) -> str:
    """Return a few lines of text about one rate."""
    lines = []
    for name, ratio in result["ratio"].items():
        low, high = result["ratio_quartiles"][name]
        target = result["ratio_at_most"][name]
        lines.append(f"  {name}: {ratio:.3f} [{low:.3f}, {high:.3f}] (target: at most {target:g})")
    for variant, seconds in result["median_step_seconds"].items():
        lines.append(f"  {variant}: {seconds:.3f} s a step")
    verdict = "losses agree" if result["losses_agree"] else "LOSSES DIFFER: the ratios mean nothing"
    return "\n".join([*lines, f"  {verdict}"])


if __name__ == "__main__":
    raise SystemExit(main())
