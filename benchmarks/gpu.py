"""Check a machine with a GPU: the tests marked `cuda`, times of steps, and two published trainings.

    python -m benchmarks.gpu                   all parts
    python -m benchmarks.gpu tests steps       some parts; each ends within ten minutes
    python -m benchmarks.gpu --device=cpu      only to try the script out

Each part is a process, which is killed at its limit; the others still run.  The record is results/gpu.json.  Parts that
are not run now keep their records if those come from the same kind of machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import torch

from benchmarks import measure
from benchmarks.ranks import ROOT, end_with_parent, python_path

Record = dict[str, Any]
_LOG_LINES = 200
_ON_CPU = "tests/train/ddp/test_failed_backward.py"
# Published settings and figures: PyTorch's MNIST example (jobs/mnist.yaml), and a table of ten epochs
# (jobs/fashion-mnist.yaml).
_MNIST = ("mnist_cnn", "mnist", "batch-size=64", "optimizer=adadelta", "lr=1.0", "scheduler=step")
_FASHION = ("resnet18", "fashion_mnist", "batch-size=32", "optimizer=sgd", "lr=1e-3")
ACCURACY, TRAIN_LOSS, TOLERANCE = 0.992, 0.188, 0.05
_PRECISIONS, _TIMED_STEPS = ("fp32", "tf32", "bf16"), 80


class NotPassed(Exception):
    """A part has not passed: `outcome` is "failed" or "skipped", the message says why, `record` has the figures."""

    def __init__(self, outcome: str, why: str, record: Record | None = None) -> None:
        super().__init__(why)
        self.outcome, self.record = outcome, record or {}


@dataclass(frozen=True)
class Part:
    """One part: what must be true, the seconds that it may take, and what runs it for a device and a folder."""

    title: str
    limit_s: float
    run: Callable[[str, Path], Record]


def main(argv: list[str] | None = None) -> int:
    """Run the parts; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: only to try the script out")
    parser.add_argument("--results", type=Path, default=measure.RESULTS, help="folder for gpu.json")
    parser.add_argument("--in-this-process", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if unknown := [name for name in options.parts if name not in PARTS]:
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device here; --device=cpu tries the script out")
    if options.in_this_process:
        end_with_parent()
        options.in_this_process.write_text(json.dumps(_outcome(options.parts[0], options.device, options.results)))
        return 0
    name, here = f"gpu{'_on_cpu' * (options.device == 'cpu')}", _machine(options.device)
    file = options.results / f"{name}.json"
    earlier: Record = json.loads(file.read_text()) if file.exists() else {}
    records: Record = earlier["parts"] if earlier.get("machine") == here else {}
    chosen = options.parts or list(PARTS)
    for part in chosen:
        records[part] = _in_a_process(part, options.device, options.results)
        measure.write_result(options.results, name, {"benchmark": "gpu", "parts": records, "machine": here})
    print("\n".join(table(records)))
    return int(any(records[part]["outcome"] == "failed" for part in chosen))


def table(records: Record) -> Iterator[str]:
    """Yield the lines of a Markdown table: a row for each part."""
    yield from ("| part | what must be true | outcome | seconds | figures |", "|---|---|---|---|---|")
    for part, record in records.items():
        figures = "; ".join(f"{key} {record[key]}" for key in ("why", "passed", "ratio", "figures") if key in record)
        yield f"| {part} | {PARTS[part].title} | {record['outcome']} | {record['seconds']:.0f} | {figures} |"


def _in_a_process(part: str, device: str, results: Path) -> Record:
    """Run one part; return its record, with the last lines of its output unless it passed."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "record.json"
        words = [sys.executable, "-m", "benchmarks.gpu", part, f"--device={device}", f"--results={results.resolve()}"]
        environment = os.environ | {"PYTHONPATH": python_path()}
        with (Path(folder) / "log").open("w+", errors="replace") as log:
            try:
                subprocess.run(
                    [*words, f"--in-this-process={file}"],
                    cwd=ROOT,
                    env=environment,
                    stdout=log,
                    stderr=log,
                    timeout=PARTS[part].limit_s,
                )
                why = "it ended without a record"
            except subprocess.TimeoutExpired:
                why = f"it was not done within {PARTS[part].limit_s:g} s"
            record = json.loads(file.read_text()) if file.exists() else {"outcome": "failed", "why": why}
            if record["outcome"] != "passed":
                log.seek(0)
                record["log"] = log.read().splitlines()[-_LOG_LINES:]
    return {"seconds": time.monotonic() - started, **record}


def _outcome(part: str, device: str, results: Path) -> Record:
    try:
        return {"outcome": "passed", **PARTS[part].run(device, results)}
    except NotPassed as error:
        return {"outcome": error.outcome, "why": str(error), **error.record}


def _tests(device: str, results: Path) -> Record:
    """Run the tests marked `cuda`; on the CPU, some of them that run there, too."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.xml"
        # The tests of a file may share figures, so one worker gets them; all share the GPU's memory.
        workers = ["-n", "4", "--dist=loadfile", f"--junitxml={file}", "--timeout=400"]
        chosen = ["-m", "cuda", "tests/train"] if device == "cuda" else ["-k", "cpu", _ON_CPU]
        subprocess.run([sys.executable, "-m", "pytest", *workers, *chosen], cwd=ROOT)
        cases = list(ElementTree.parse(file).iter("testcase")) if file.exists() else []
    failed = [f"{case.get('classname')}: {case.get('name')}" for case in cases if {"failure", "error"} & _tags(case)]
    skipped = Counter(str(below.get("message")) for case in cases for below in case.iter("skipped"))
    record = {"passed": len(cases) - len(failed) - skipped.total(), "failed": failed, "skipped": dict(skipped)}
    if failed or not record["passed"]:
        raise NotPassed("failed", f"{len(failed)} tests failed", record)
    return record


def _tags(case: ElementTree.Element) -> set[str]:
    return {below.tag for below in case}


def _steps(device: str, results: Path) -> Record:
    """Time CustomDDP, native DDP and the bare module; only losses that differ are a failure."""
    from benchmarks import ddp

    small = ["--workload=mlp", "--rounds=1", "--steps=2"] if device == "cpu" else []
    code = ddp.main(["--no-plain", "--memory-rounds=0", f"--device={device}", f"--results={results}", *small])
    record = json.loads((results / f"ddp_{'cuda' if device == 'cuda' else 2}.json").read_text())
    if code:
        raise NotPassed("failed", "the losses of the variants differ", {"ratio": record["ratio"]})
    return {key: record[key] for key in ("ratio", "ratio_to_variant", "median_step_seconds")}


def _precisions(device: str, results: Path) -> Record:
    """Time a step in each precision, compiled and not.  Slower is a figure to keep, not an error."""
    on_cuda = device == "cuda"
    steps = _TIMED_STEPS if on_cuda else 4
    flags = ["model=resnet18", "batch-size=2500"] if on_cuda else ["model=mlp", "batch-size=64"]
    figures: Record = {}
    for precision in _PRECISIONS if on_cuda else ("fp32", "bf16"):
        for compiled in (False, True):
            more = [f"precision={precision}", f"max-steps={steps}", "epochs=100000", *["compile"] * compiled]
            try:
                with _trained(device, "dataset=synthetic", *flags, *more) as read:
                    late = [one["seconds_per_step"] for one in read("step") if one["step"] > steps // 2]
            except NotPassed as error:
                raise NotPassed(error.outcome, str(error), {"figures": figures}) from None
            figures[precision + ", compiled" * compiled] = median(late)
    return {"figures": figures}


def _mnist(device: str, results: Path) -> Record:
    record = _published(device, "MNIST", 14, *_MNIST)
    if not record["figures"]["val_accuracy"] >= ACCURACY:
        raise NotPassed("failed", f"the accuracy is below the published {ACCURACY:.1%}", record)
    return record


def _fashion_mnist(device: str, results: Path) -> Record:
    record = _published(device, "FashionMNIST", 10, *_FASHION)
    if not abs(record["figures"]["train_loss"] / TRAIN_LOSS - 1) <= TOLERANCE:
        raise NotPassed("failed", f"the train loss differs from the published {TRAIN_LOSS} by more than 5 %", record)
    return record


def _published(device: str, folder: str, epochs: int, model: str, dataset: str, *flags: str) -> Record:
    """Train in a published setting; return the figures of the last epoch, and the train loss of each."""
    root = Path(os.environ.get("DATA_ROOT", "no folder"))
    if not (root / folder / "raw").is_dir():
        raise NotPassed("skipped", f"set DATA_ROOT to the folder that holds {folder}/raw")
    data = (f"model={model}", f"dataset={dataset}", f"data-root={root.resolve()}")
    with _trained(device, *data, f"epochs={epochs if device == 'cuda' else 1}", *flags) as read:
        done = read("epoch")
    names = ("train_loss", "val_loss", "val_accuracy")
    return {"figures": {name: done[-1][name] for name in names}, "train_loss": [one["train_loss"] for one in done]}


@contextmanager
def _trained(device: str, *flags: str) -> Iterator[Callable[[str], list[Record]]]:
    """Run `python -m train` to its end; yield what reads its records of one kind.  Raises NotPassed if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        words: Sequence[str] = [f"--{flag}" for flag in (f"device={device}", f"run-dir={folder}", *flags)]
        ended = subprocess.run(
            [sys.executable, "-m", "train", *words], cwd=ROOT, stdout=sys.stdout, stderr=subprocess.PIPE, text=True
        )
        print(ended.stderr)
        if ended.returncode:
            # The words of train, Triton and Inductor for: there is no C compiler, or no Python.h for it.
            refused = ("--compile needs", "Failed to find C compiler", "InvalidCxxCompiler", "Python.h")
            outcome = "skipped" if any(words in ended.stderr for words in refused) else "failed"
            raise NotPassed(outcome, f"python -m train {' '.join(words)} ended with {ended.returncode}")
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
        yield lambda event: [record for record in map(json.loads, lines) if record["event"] == event]


def _machine(device: str) -> Record:
    """Return the kind of machine, with the GPU, its driver and the libraries that talk to it."""
    if device == "cpu":
        return {**measure.machine(), "gpu": None}
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return {
        **measure.machine(),
        "gpu": torch.cuda.get_device_name(),
        "gpus": torch.cuda.device_count(),
        "memory_mib": torch.cuda.get_device_properties(0).total_memory >> 20,
        "driver": subprocess.run(query, capture_output=True, text=True, timeout=30).stdout.split()[:1],
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }


PARTS = {
    "tests": Part("the tests marked `cuda` pass", 590, _tests),
    "steps": Part("CustomDDP, native DDP and the bare module have the same losses", 530, _steps),
    "precisions": Part("resnet18 trains in fp32, tf32 and bf16, compiled and not", 530, _precisions),
    "mnist": Part("mnist_cnn reaches the published 99.2 % in 14 epochs", 300, _mnist),
    "fashion_mnist": Part("resnet18 has the published train loss of 0.188 after ten epochs", 550, _fashion_mnist),
}


if __name__ == "__main__":
    raise SystemExit(main())
