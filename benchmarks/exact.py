"""What --logical-world costs: time of a training step and memory, against the fast mode on as many processes.

    python -m benchmarks.exact [--workload NAME] [--rounds 3]

Both variants are `python -m train` on two processes over gloo with one thread each, on synthetic images or the text of
the docs; they take turns, and a round's time is the median of its steps but the first two.  Memory is that of one
process with one large model: how far its peak is above what it has before the first step, in sizes of all gradients.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch
from torch import nn, optim
from torch.utils.data import TensorDataset

from benchmarks.measure import in_turns, machine, make_parser, median_ratio, ratios, write_result
from train import Run
from train.datasets import tokens

PROCESSES = 2
# Model, samples of the global batch, slices, steps.
WORKLOADS = {
    "resnet18_128": ("resnet18", 256, 2, 5),
    "resnet18_64": ("resnet18", 256, 4, 5),
    "resnet18_16": ("resnet18", 64, 4, 12),
    "mnist_cnn_32": ("mnist_cnn", 128, 4, 40),
    "mlp_32": ("mlp", 128, 4, 200),
    "gpt_8": ("gpt", 32, 4, 30),
}
SLICES = (1, 2, 4, 8)


def main(argv: list[str] | None = None) -> None:
    parser = make_parser("exact", __doc__, 3, "runs of each variant")
    parser.add_argument("--workload", choices=WORKLOADS, action="append", help="model_samples of a slice; default: all")
    parser.add_argument("--max-steps", type=int, help="end each run after so many steps, for a quick look")
    options = parser.parse_args(argv)

    seconds = {}
    for name in options.workload or WORKLOADS:
        model, batch_size, slices, steps = WORKLOADS[name]
        flags = [f"--model={model}", f"--batch-size={batch_size}", f"--max-steps={options.max_steps or steps}"]
        exact = [*flags, f"--logical-world={slices}"]
        variants = {"exact": partial(seconds_per_step, exact), "fast": partial(seconds_per_step, flags)}
        seconds[name] = in_turns(variants, options.rounds)
        print(f"{name}: {median_ratio(seconds[name]['exact'], seconds[name]['fast']):.3f}", flush=True)
    with get_context("spawn").Pool(1, maxtasksperchild=1) as alone:
        peaks = alone.map(gradients_in_memory, (None, *SLICES), chunksize=1)
    memory = dict(zip(("fast", *map(str, SLICES)), peaks, strict=True))
    print(f"gradients in memory: {memory}")
    result = {
        "benchmark": "exact",
        "what": "seconds of a step with --logical-world / without, named by model and samples of a slice",
        "unit": "time / fast mode's time",
        "ratio": {name: median_ratio(each["exact"], each["fast"]) for name, each in seconds.items()},
        "ratios": {name: ratios(each["exact"], each["fast"]) for name, each in seconds.items()},
        "seconds_per_step": seconds,
        "gradients_in_memory_by_slices_of_a_process": memory,
    }
    write_result(options.results, "exact", result | {"settings": {"rounds": options.rounds}, "machine": machine()})


def seconds_per_step(flags: Sequence[str], number: int) -> float:
    """Return the median time of a step of one run.  Raises CalledProcessError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        data = ["--dataset=synthetic"]
        if "--model=gpt" in flags:
            tokens.write(sorted(Path(__file__).parents[1].glob("docs/*.md")), Path(folder), context=64)
            data = ["--dataset=tokens", f"--data-root={folder}"]
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}", "-m", "train"]
        common = [f"--run-dir={folder}", f"--seed={number}", "--no-sync-batchnorm", "--log-every=1", "--device=cpu"]
        command = [sys.executable, *torchrun, *flags, *data, *common]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
        records = map(json.loads, (Path(folder) / "metrics.jsonl").read_text().splitlines())
        times: list[float] = [each["seconds_per_step"] for each in records if each["event"] == "step"]
    return median(times[2:])


def gradients_in_memory(slices: int | None) -> float:
    """Return the peak of memory in sizes of all gradients."""
    torch.set_num_threads(1)
    run = Run(seed=1, logical_world=slices)
    model = run.wrap(nn.Sequential(*(nn.Linear(3000, 3000, bias=False) for _ in range(4))))
    optimizer = optim.SGD(model.parameters(), lr=1e-3)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    for _ in run.epochs(1):
        for batch in run.batches(TensorDataset(torch.randn(32, 3000)), batch_size=16):
            run.step(lambda part: model(part[0]).square().mean(), batch, optimizer)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return (peak - before) / sum(param.numel() * param.element_size() for param in model.parameters())


if __name__ == "__main__":
    main()
