"""Time that the Trainer adds to a step, with metrics.jsonl, TensorBoard and progress on, against a bare loop.

    python -m benchmarks.trainer_overhead [--model mnist_cnn] [--rounds 5]

    trainer  Trainer.train_epoch() as `python -m train --run-dir DIR --tensorboard` runs it
    bare     the same model in CustomDDP, the same batches and optimizer: forward, backward, step, and nothing else

Both run in the same two processes, with one thread each, and take turns: one epoch of the synthetic dataset each.
Each round gives one ratio of seconds per step; the median is the result.  The load average says how busy the machine
was: ratios from a busy machine are noise.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, machine, median_ratio, ratios, write_result
from benchmarks.ranks import HERE, run_ranks
from benchmarks.trainer_overhead_ranks import BATCH_SIZE, measure

PROCESSES = 2
TARGET = 1.03


def main(argv: list[str] | None = None) -> int:
    """Measure, print the ratio and write RESULTS/trainer_overhead.json."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trainer_overhead", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="mnist_cnn", help="a file in train/models/")
    parser.add_argument("--rounds", type=int, default=5, help="epochs that each variant trains")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for trainer_overhead.json")
    options = parser.parse_args(argv)
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"model": options.model, "rounds": options.rounds, "run_dir": folder}
        seconds = run_ranks(measure, [HERE] * PROCESSES, timeout_s=1800, **arguments)[0]
    ratio = median_ratio(seconds["trainer"], seconds["bare"])
    result: dict[str, Any] = {
        "claim": f"a step through Trainer takes at most {TARGET} of a bare loop's",
        "ratio": ratio,
        "target": TARGET,
        "met": ratio <= TARGET,
        "ratios": ratios(seconds["trainer"], seconds["bare"]),
        "seconds_per_step": seconds,
        "settings": {"processes": PROCESSES, "threads": 1, "model": options.model, "batch_size": BATCH_SIZE},
        "load_average": {"before": load_before, "after": os.getloadavg()[0]},
        "machine": machine(),
    }
    write_result(options.results, "trainer_overhead", result)
    print(f"trainer / bare loop: {ratio:.3f} (target: at most {TARGET}); load average before: {load_before:.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
