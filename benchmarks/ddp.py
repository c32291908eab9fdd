"""Time of a training step and peak memory: CustomDDP against native DDP and the loops of tutorials.

    python -m benchmarks.ddp [--processes 2] [--workload resnet18|mlp|small_layers|gpt|all] [--device cpu|cuda]

    ours                   train.ddp.CustomDDP with its defaults
    ours_gloo              the same with shared memory turned off: every byte goes through gloo, as in native
    native                 torch.nn.parallel.DistributedDataParallel with its defaults
    native_bucket_view     … with gradient_as_bucket_view=True
    native_static_graph    … with static_graph=True
    hook_per_parameter     an all-reduce in a hook of each parameter, as in tutorials
    average_after_backward an all-reduce of each parameter after backward

All variants live in the same processes.  Each has its own copy of the model, the same initial weights and the same
batches.  They take turns: in a round each variant runs one step that is not counted and some that are.  The result is
the ratio of ours to the native variant with the shortest median step.  Each process has one thread and uses gloo over
loopback.  With --device=cuda there is one process on NCCL, and one more variant: the module without a wrapper (`bare`).

The variants must do the same work: the benchmark compares their losses in float64, averaged over the ranks, after equal
numbers of steps.  Peak memory (VmHWM) is measured in processes that hold only one variant.  The largest rank counts,
as the median over the rounds.
"""

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.measure import in_turns, machine, make_parser, median_ratio, quartiles, ratios, write_result
from benchmarks.ranks import HERE, run_ranks
from benchmarks.steps import WARM_UP_STEPS, losses_in_double, peak_memory_mib, time_variants
from benchmarks.variants import NATIVE, PLAIN
from benchmarks.workloads import WORKLOADS

# Our median step / the best native one, by the number of processes; on CUDA one process has nothing to reduce.
RATIO_AT_MOST = {1: 1.0, 2: 0.90, 4: 0.95}
BARE_RATIO_AT_MOST = 1.01
# Median step with a hook per parameter / ours.
TIMES_FASTER_AT_LEAST = {"resnet18": 1.5, "small_layers": 6.0}
# Counted steps of a variant in a round: enough for half a second or more.
STEPS = {"resnet18": 4, "mlp": 60, "small_layers": 10, "gpt": 2}
CUDA_STEPS = 50
MEMORY_VARIANTS = ("ours", "native_bucket_view")
# For float64, in which sums over ranks in another order differ by 1e-16 at first.
LOSS_TOLERANCE = 1e-9
# Buckets are rebuilt after the first step; eight steps use each batch twice.
LOSS_STEPS = 8
_TIMEOUT_S = 900.0


def main(argv: list[str] | None = None) -> int:
    """Measure and write results/ddp_PROCESSES.json (or ddp_cuda.json); return 1 if the losses do not agree."""
    parser = make_parser("ddp", __doc__, 9, "turns that each variant takes")
    parser.add_argument("--processes", type=int, default=2, help="ranks on this machine (CUDA: always one)")
    parser.add_argument("--workload", choices=[*WORKLOADS, "all"], default="all", help="what is trained")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="device of the training")
    parser.add_argument("--steps", type=int, help="counted steps per turn; default: set by the workload")
    parser.add_argument("--memory-rounds", type=int, default=3, help="how often each variant's peak memory is measured")
    parser.add_argument(
        "--no-plain", action="store_true", help="leave out the slow hook_per_parameter and average_after_backward"
    )
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device=cuda: torch sees no CUDA device here")

    on_cuda = options.device == "cuda"
    processes = 1 if on_cuda else options.processes
    variants = ["bare", "ours", *NATIVE] if on_cuda else ["ours", "ours_gloo", *NATIVE]
    variants += [] if options.no_plain or on_cuda else PLAIN
    names = list(WORKLOADS) if options.workload == "all" else [options.workload]
    measured: dict[str, dict[str, Any]] = {}
    memory: dict[str, dict[str, list[float]]] = {}
    for name in names:
        steps = options.steps or (CUDA_STEPS if on_cuda else STEPS[name])
        measured[name] = time_workload(name, variants, processes, options.rounds, steps, options.device)
        if options.memory_rounds and not on_cuda:
            memory[name] = measure_memory(name, processes, options.memory_rounds)
        print(f"{name}, {processes} processes: {in_words(compare(measured[name]))}", flush=True)
        if name in memory:
            print(f"{name}: peak memory / native with bucket view {memory_ratio(memory[name]):.3f}", flush=True)
        # After each workload, so that an error or a kill leaves those before it.
        result = _result(options, processes, measured, memory)
        write_result(options.results, "ddp_cuda" if on_cuda else f"ddp_{processes}", result)
    return 0 if all(result["losses_agree"].values()) else 1


def _result(
    options: argparse.Namespace,
    processes: int,
    measured: Mapping[str, Mapping[str, Any]],
    memory: Mapping[str, Mapping[str, Sequence[float]]],
) -> dict[str, Any]:
    on_cuda = options.device == "cuda"
    compared = {name: compare(outcome) for name, outcome in measured.items()}
    return {
        "benchmark": "ddp",
        "what": f"median time of a training step, ours / best native, {processes} processes",
        "unit": "step time / best native's",
        **{key: {name: part[key] for name, part in compared.items()} for key in next(iter(compared.values()))},
        "ratio_at_most": RATIO_AT_MOST.get(processes, 1.0),
        **({"ratio_to_bare_at_most": BARE_RATIO_AT_MOST} if on_cuda else {}),
        "times_faster_at_least": {} if on_cuda or options.no_plain else TIMES_FASTER_AT_LEAST,
        "loss_tolerance": LOSS_TOLERANCE,
        "peak_memory_ratio": {name: memory_ratio(peaks) for name, peaks in memory.items()},
        "peak_memory_mib": memory,
        "step_seconds": {name: outcome["step_seconds"] for name, outcome in measured.items()},
        "settings": {
            "processes": processes,
            "threads": 1,
            "backend": "nccl" if on_cuda else "gloo",
            "device": torch.cuda.get_device_name() if on_cuda else "cpu",
            "batch_size_per_process": {name: WORKLOADS[name].batch_size for name in measured},
            "rounds": options.rounds,
            "steps": options.steps or (CUDA_STEPS if on_cuda else {name: STEPS[name] for name in measured}),
        },
        "machine": machine(),
    }


def time_workload(
    workload: str, variants: Sequence[str], processes: int, rounds: int, steps: int, device: str
) -> dict[str, Any]:
    """Return what rank 0 measured for all variants: seconds per step, and losses in float64."""
    nodes, backend = [HERE] * processes, "nccl" if device == "cuda" else "gloo"
    shared: dict[str, Any] = {"backend": backend, "workload": workload, "variants": list(variants), "device": device}
    [timed, *_] = run_ranks(time_variants, nodes, _TIMEOUT_S, rounds=rounds, steps=steps, **shared)
    [losses, *_] = run_ranks(losses_in_double, nodes, _TIMEOUT_S, steps=LOSS_STEPS, **shared)
    return {"step_seconds": timed["step_seconds"], "losses": losses}


def measure_memory(workload: str, processes: int, rounds: int) -> dict[str, list[float]]:
    """Return the MiB of the largest rank, by variant and round, after one step more than buckets need to settle."""

    def largest(variant: str, number: int) -> float:
        nodes = [HERE] * processes
        peaks: list[float] = run_ranks(
            peak_memory_mib, nodes, _TIMEOUT_S, workload=workload, variant=variant, steps=WARM_UP_STEPS + 1
        )
        return max(peaks)

    variants: dict[str, Callable[[int], float]] = {variant: partial(largest, variant) for variant in MEMORY_VARIANTS}
    return in_turns(variants, rounds)


def memory_ratio(peaks: Mapping[str, Sequence[float]]) -> float:
    """Return our median peak memory / native's with bucket view."""
    return statistics.median(peaks["ours"]) / statistics.median(peaks["native_bucket_view"])


def compare(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ratios of one workload, from the seconds per step and the losses of its variants."""
    seconds, losses = outcome["step_seconds"], outcome["losses"]
    best = min(NATIVE, key=lambda variant: statistics.median(seconds[variant]))
    difference = loss_difference(losses)
    by_round = ratios(seconds["ours"], seconds[best])
    return {
        "ratio": median_ratio(seconds["ours"], seconds[best]),
        "ratio_quartiles": quartiles(by_round),
        "ratios": by_round,
        "best_native": best,
        "ratio_to_variant": {
            variant: median_ratio(seconds["ours"], seconds[variant]) for variant in seconds if variant != "ours"
        },
        "median_step_seconds": {variant: statistics.median(values) for variant, values in seconds.items()},
        "loss_difference": difference,
        "losses_agree": difference <= LOSS_TOLERANCE,
    }


def loss_difference(losses: Mapping[str, Sequence[float]]) -> float:
    """Return the largest difference between ours and another variant after equal steps, as a share of the first loss.

    It is not a share of the same step's loss.  On repeated batches the loss falls to almost nothing, so that a rounding
    error would be a large share of it.
    """
    pairs = [pair for variant in losses for pair in zip(losses["ours"], losses[variant], strict=True)]
    # As a tensor, because Python's max() drops a NaN that is not the first.
    return float((torch.tensor(pairs, dtype=torch.float64).diff() / losses["ours"][0]).abs().max())


def in_words(part: Mapping[str, Any]) -> str:
    """Return one line of text about a workload."""
    low, high = part["ratio_quartiles"]
    others = ", ".join(f"{variant} {1 / ratio:.2f}" for variant, ratio in part["ratio_to_variant"].items())
    verdict = f"losses agree to {part['loss_difference']:.1e}" if part["losses_agree"] else "LOSSES DIFFER"
    return (
        f"ours / best native ({part['best_native']}) {part['ratio']:.3f} [{low:.3f}, {high:.3f}]; "
        f"in steps of ours: {others}; {verdict}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
