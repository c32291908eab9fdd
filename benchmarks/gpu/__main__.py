"""Run the GPU checks in order and record them: what passed, what failed, what was skipped and why.

    python -m benchmarks.gpu                    all of them
    python -m benchmarks.gpu c e                some of them
    python -m benchmarks.gpu --budget-s=570     those whose limits end within this time; prints how to run the rest

Each check runs in a separate process group and is killed at its time limit. The other checks still run.  The record
is results/gpu.json, written after each check.  Checks that are not run now keep their records in it if those come from
the same kind of machine.  If this process is killed, the check that is running ends with it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.gpu import outcome
from benchmarks.gpu.checks import CHECKS, Check
from benchmarks.ranks import ROOT, python_path

# Modules without which no check runs, and the packages that have them.
_NEEDED = {"torch": "torch", "numpy": "numpy", "yaml": "PyYAML", "pydantic": "pydantic"}
_LOG_LINES = 200


def main(argv: list[str] | None = None) -> int:
    """Run the checks; return 1 if one of them failed, 2 if a package is missing."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument(
        "checks", nargs="*", metavar="CHECK", help=f"{', '.join(CHECKS)}; a stands for a1 and a2; default: all"
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: only to try the checks out")
    parser.add_argument("--results", type=Path, default=measure.RESULTS, help="folder for the record")
    parser.add_argument(
        "--budget-s",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="start a check only if its time limit ends within this budget",
    )
    options = parser.parse_args(argv)
    parts = {given: [name for name in CHECKS if given in (name, name.rstrip("0123456789"))] for given in options.checks}
    if unknown := [given for given, names in parts.items() if not names]:
        parser.error(f"there is no check {', '.join(unknown)}; there are {', '.join(CHECKS)}")
    if missing := [package for module, package in _NEEDED.items() if find_spec(module) is None]:
        print(
            f"not installed: {', '.join(missing)}; install them for {sys.executable}, or into a folder of PYTHONPATH: "
            f"pip install --target FOLDER {' '.join(missing)}",
            file=sys.stderr,
        )
        return 2

    chosen = list(dict.fromkeys(name for names in parts.values() for name in names)) or list(CHECKS)
    if options.device == "cuda" and not _sees_gpu():
        for letter in chosen:
            print(f"({letter}) skipped: {CHECKS[letter].title}: torch sees no GPU here")
        return 0
    records: dict[str, dict[str, Any]] = {}
    not_started: dict[str, dict[str, Any]] = {}
    for letter in chosen:
        check = CHECKS[letter]
        left_s = options.budget_s - (time.monotonic() - began)
        if check.limit_s > left_s:
            why = f"its limit is {check.limit_s:g} s, and {max(0.0, left_s):.0f} s were left"
            not_started[letter] = {"title": check.title, "outcome": "not started", "why": why}
            print(f"({letter}) not started: {check.title}: {why}", flush=True)
        else:
            records[letter] = run(letter, check, options.device, options.results)
            print(in_words(letter, records[letter]), flush=True)
        keep(options.results, records, options.device, not_started)
    if not_started:
        print(f"for the others: python -m benchmarks.gpu {' '.join(not_started)} --budget-s={options.budget_s:g}")
    return int(any(record["outcome"] == "failed" for record in records.values()))


def run(letter: str, check: Check, device: str, results: Path) -> dict[str, Any]:
    """Run one check in a separate process group; return its record, even after a failure or a time-out."""
    started = time.monotonic()
    environment = os.environ | {"PYTHONPATH": python_path(), outcome.RESULTS: str(results.resolve())}
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder) / "record.json", Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.gpu.one", check.function, device, str(file)],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(check.limit_s)
                why = f"ended with exit code {process.returncode} and no record"
            except subprocess.TimeoutExpired:
                why = f"not done within {check.limit_s:g} s"
            finally:
                _kill_group(process)
        if file.exists():
            record = json.loads(file.read_text())
        else:
            parts = outcome.parts_file(file)
            done = json.loads(parts.read_text()) if parts.exists() else {}
            record = {"outcome": "failed", "why": why, **done}
        if record["outcome"] != "passed":
            record["log"] = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    return {"title": check.title, "seconds": time.monotonic() - started, "limit_s": check.limit_s, **record}


def keep(folder: Path, records: Mapping[str, Any], device: str, not_started: Mapping[str, Any] | None = None) -> None:
    """Write the records, and keep the records of other checks from earlier runs on the same kind of machine.

    not_started: what to write about checks that have no record from earlier runs.
    """
    name = "gpu" if device == "cuda" else "gpu_on_cpu"
    here = machine(device)
    earlier = _read(folder / f"{name}.json")
    kept = earlier.get("checks", {}) if earlier.get("machine") == here else {}
    all_records = {**(not_started or {}), **kept, **records}
    checks = {letter: all_records[letter] for letter in CHECKS if letter in all_records}
    measure.write_result(folder, name, {"benchmark": "gpu", "checks": checks, "machine": here})


def _read(file: Path) -> dict[str, Any]:
    """Return what `file` holds; nothing if there is none, or one that cannot be read, which is moved aside."""
    try:
        held: dict[str, Any] = json.loads(file.read_text())
        return held
    except FileNotFoundError:
        return {}
    except ValueError:
        file.replace(file.with_suffix(".unreadable"))
        return {}


def _sees_gpu() -> bool:
    import torch  # here, so that a missing package is reported in one sentence

    return torch.cuda.is_available()


def machine(device: str) -> dict[str, Any]:
    """Return the kind of machine, with the GPU, its driver and the libraries that talk to it."""
    if device == "cpu":
        return {**measure.machine(), "gpu": None}
    import torch

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, timeout=30).stdout.split()[:1]
    except (OSError, subprocess.TimeoutExpired):
        driver = []
    return {
        **measure.machine(),
        "gpu": torch.cuda.get_device_name(),
        "gpus": torch.cuda.device_count(),
        "memory_mib": torch.cuda.get_device_properties(0).total_memory >> 20,
        "driver": driver[0] if driver else "not known: nvidia-smi did not say",
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }


def in_words(letter: str, record: Mapping[str, Any]) -> str:
    """Return one line of text about a check."""
    why = f": {record['why']}" if record.get("why") else ""
    return f"({letter}) {record['outcome']} in {record['seconds']:.0f} s: {record['title']}{why}"


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    raise SystemExit(main())
