"""Predictions of the cost model for up to 1,024 nodes.  Nothing here was measured at that size.

Assumptions that this machine cannot check:
    one rank per node, with all cores to itself, and one flat ring over all nodes;
    a link of 100 or 400 Gbit/s with the overhead of a byte as measured here;
    a message's latency either as measured here (TCP between namespaces) or 5 us, as RDMA networks have it;
    resnet18: the bucket schedule measured here, its times divided so that a step without a network takes 10 ms;
    1e9 parameters: gradients in float32, 25 MiB per bucket, filled evenly over the last two thirds of a step that takes
    0.5 s (6 floating-point operations per parameter and token, 16,384 tokens, 200 Tflop/s).
"""

from __future__ import annotations

from typing import Any

from benchmarks.cost_model import Fit, Schedule, predict_step

NODES = tuple(2**power for power in range(1, 11))
GBIT_PER_S = (100, 400)
RDMA_ALPHA_S = 5e-6

_RESNET18_STEP_S = 0.010
_LARGE_PARAMETERS = 10**9
_LARGE_STEP_S = 6 * _LARGE_PARAMETERS * 16_384 / 200e12
_BUCKET_BYTES = 25 * 2**20


def predictions(resnet18: Schedule, fit: Fit) -> list[dict[str, Any]]:
    """Return a row for each model, link and latency: seconds of a step by number of nodes, and without a network."""
    schedules = {
        "resnet18": scaled(resnet18, _RESNET18_STEP_S),
        "1e9 parameters": even_schedule(4 * _LARGE_PARAMETERS, _BUCKET_BYTES, _LARGE_STEP_S),
    }
    rows = []
    for model, schedule in schedules.items():
        for gbit_per_s in GBIT_PER_S:
            for alpha, alpha_s in (("measured", fit.alpha_s), ("assumed", RDMA_ALPHA_S)):
                link = Fit(alpha_s, fit.overhead).link(gbit_per_s * 1000.0)
                steps = [predict_step(schedule, nodes, link) for nodes in NODES]
                rows.append(
                    {
                        "model": model,
                        "gbit_per_s": gbit_per_s,
                        "alpha": alpha,
                        "alpha_s": alpha_s,
                        "step_without_network_s": schedule.step_s,
                        "nodes": list(NODES),
                        "step_s": [step.seconds for step in steps],
                        "overlap_share": [step.overlap_share for step in steps],
                    }
                )
    return rows


def scaled(schedule: Schedule, step_s: float) -> Schedule:
    """Return the same schedule on a device that takes `step_s` for the step."""
    factor = step_s / schedule.step_s
    return Schedule(
        schedule.bucket_bytes,
        tuple(moment * factor for moment in schedule.bucket_full_s),
        schedule.backward_end_s * factor,
        step_s,
    )


def even_schedule(num_bytes: int, bucket_bytes: int, step_s: float) -> Schedule:
    """Return buckets that fill evenly over backward, the last two thirds of the step; the optimizer takes no time."""
    full, rest = divmod(num_bytes, bucket_bytes)
    sizes = [bucket_bytes] * full + [rest] * (rest > 0)
    moments = [step_s / 3 + 2 / 3 * step_s * (index + 1) / len(sizes) for index in range(len(sizes))]
    return Schedule(tuple(sizes), tuple(moments), moments[-1], step_s)
