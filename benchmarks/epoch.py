"""Time of a training epoch on two processes: ours against a script in the style of published tutorials.

    python -m benchmarks.epoch --data-root DIR [--workload resnet18|mnist_cnn|all]

    ours    python -m train, as torchrun starts it
    peer    benchmarks/peers/plain.py, started the same way

Both get the same flags: model, initial weights, global batch, optimizer, seed.  Both run as two processes over gloo,
with one thread each.  They take turns: ours, peer, ours, peer, …  Round n has seed n.  Memory layout is part of what is
compared: our mnist_cnn is channels-last, the peer's has the layout of a plain nn.Module.

`train_seconds` is the time that counts.  In both it starts when all ranks are connected and have built the model, and
ends after the last optimizer step.  It includes reading data, and for the peer the start of its workers, but neither
imports nor evaluation.  `command_seconds` is the whole command, with imports, reading of files and one evaluation.

A ratio means something only if both learn the same: their training losses of the epoch, mean over the rounds, must
agree.  The variants draw different orders of samples, so the losses agree up to noise, which is larger with fewer
steps.  (Our loss is a mean over samples.  The peer's is a mean over batches, as published, so that the samples of a
short last batch count more.)
In `ours` and `peer`, BatchNorm uses the statistics of each rank's own samples, because torch has no BatchNorm over all
ranks for the CPU.  If the model has BatchNorm, a third variant, `ours_sync_batchnorm`, also computes the statistics
over all ranks.  --no-sync-batchnorm leaves this variant out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torchvision.datasets

from benchmarks.measure import in_turns, machine, make_parser, median_ratio, ratios, write_result
from train.config import to_argv

PROCESSES = 2
TARGET = 0.6
SETTINGS = {"processes": PROCESSES, "threads": 1, "backend": "gloo", "device": "cpu"}
DATASETS = {"fashion_mnist": torchvision.datasets.FashionMNIST, "mnist": torchvision.datasets.MNIST}

# For each variant: the module that torchrun starts, and the flags that only this variant gets.
VARIANTS = {
    "ours": ("train", ["--no-sync-batchnorm"]),
    "peer": ("benchmarks.peers.plain", []),
    "ours_sync_batchnorm": ("train", ["--sync-batchnorm"]),
}


@dataclass(frozen=True)
class Workload:
    """What is trained; the fields are flags of `python -m train`."""

    model: str
    dataset: str
    batch_size: int
    optimizer: str
    lr: float


WORKLOADS = {
    "resnet18": Workload("resnet18", "fashion_mnist", 32, "sgd", 1e-3),
    "mnist_cnn": Workload("mnist_cnn", "mnist", 64, "adadelta", 1.0),
}
HAVE_BATCHNORM = ("resnet18",)


@dataclass(frozen=True)
class Run:
    """One epoch of one variant."""

    train_seconds: float
    command_seconds: float
    train_loss: float


def main(argv: list[str] | None = None) -> int:
    """Measure and write results/epoch_WORKLOAD.json; return 1 if the losses of a workload do not agree."""
    parser = make_parser("epoch", __doc__, 3, "epochs that each variant trains, each from new weights")
    parser.add_argument("--workload", choices=[*WORKLOADS, "all"], default="all", help="what is trained")
    parser.add_argument("--data-root", default="data", help="folder of the datasets, downloaded if absent")
    parser.add_argument("--max-steps", type=int, help="end each epoch after so many steps, for a quick look")
    parser.add_argument("--dropout", type=float, help="dropout rate of all variants; default: the model's own")
    parser.add_argument(
        "--sync-batchnorm", action=argparse.BooleanOptionalAction, default=True, help="measure ours_sync_batchnorm, too"
    )
    parser.add_argument("--tolerance", type=float, default=0.03, help="relative difference that losses may have")
    options = parser.parse_args(argv)

    agree = True
    for name in WORKLOADS if options.workload == "all" else [options.workload]:
        workload = WORKLOADS[name]
        DATASETS[workload.dataset](options.data_root, download=True)
        synchronised = options.sync_batchnorm and name in HAVE_BATCHNORM
        variants = [variant for variant in VARIANTS if synchronised or variant != "ours_sync_batchnorm"]
        limits = {"max_steps": options.max_steps, "dropout": options.dropout}
        flags = to_argv(asdict(workload) | limits | {"data_root": options.data_root})
        runs = in_turns({variant: partial(run_epoch, variant, flags) for variant in variants}, options.rounds)
        result = compare(runs, options.tolerance)
        settings = asdict(workload) | SETTINGS | limits | {"rounds": options.rounds}
        write_result(options.results, f"epoch_{name}", result | {"settings": settings, "machine": machine()})
        agree &= result["losses_agree"]
        print(f"{name}: {in_words(result)}", flush=True)
    return 0 if agree else 1


def run_epoch(variant: str, flags: Sequence[str], number: int) -> Run:
    """Start the two processes of `variant` for round `number` and wait for their end.

    Raises CalledProcessError if they fail.  Their own error messages are on stderr by then.
    """
    module, own_flags = VARIANTS[variant]
    with tempfile.TemporaryDirectory() as folder:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}", "-m", module]
        command = [sys.executable, *torchrun, *flags, *own_flags, f"--seed={number}", f"--run-dir={folder}"]
        environment = os.environ | {"OMP_NUM_THREADS": str(SETTINGS["threads"])}
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        command_seconds = time.perf_counter() - started
        records = map(json.loads, (Path(folder) / "metrics.jsonl").read_text().splitlines())
        [timed] = [record for record in records if record["event"] == "epoch"]
    run = Run(timed["train_seconds"], command_seconds, timed["train_loss"])
    print(f"round {number}, {variant}: {run.train_seconds:.1f} s, loss {run.train_loss:.4f}", flush=True)
    return run


def compare(runs: dict[str, list[Run]], tolerance: float) -> dict[str, Any]:
    """Return the result of one workload: the ratio of each of our variants to the peer, and the figures behind it."""
    train_seconds = {variant: [run.train_seconds for run in of_variant] for variant, of_variant in runs.items()}
    command_seconds = {variant: [run.command_seconds for run in of_variant] for variant, of_variant in runs.items()}
    train_loss = {variant: [run.train_loss for run in of_variant] for variant, of_variant in runs.items()}
    ours = [variant for variant in runs if variant != "peer"]
    difference = {variant: mean(train_loss[variant]) / mean(train_loss["peer"]) - 1 for variant in ours}
    return {
        "benchmark": "epoch",
        "what": "seconds of the training part of one epoch, variant / peer; the median over the rounds",
        "unit": "time / peer's time",
        "ratio": {variant: median_ratio(train_seconds[variant], train_seconds["peer"]) for variant in ours},
        "ratio_at_most": TARGET,
        "ratios": {variant: ratios(train_seconds[variant], train_seconds["peer"]) for variant in ours},
        "command_ratio": {variant: median_ratio(command_seconds[variant], command_seconds["peer"]) for variant in ours},
        "loss_difference": difference,
        "loss_tolerance": tolerance,
        "losses_agree": all(abs(part) <= tolerance for part in difference.values()),
        "train_loss": train_loss,
        "train_seconds": train_seconds,
        "command_seconds": command_seconds,
    }


def in_words(result: dict[str, Any]) -> str:
    """Return one line of text about a workload."""
    parts = [
        f"{variant} / peer {ratio:.3f} (command {result['command_ratio'][variant]:.3f}, "
        f"loss {result['loss_difference'][variant]:+.1%})"
        for variant, ratio in result["ratio"].items()
    ]
    verdict = "losses agree" if result["losses_agree"] else "LOSSES DIFFER: the ratios mean nothing"
    return f"{'; '.join(parts)}; target: at most {TARGET:g}; {verdict}"


if __name__ == "__main__":
    raise SystemExit(main())
