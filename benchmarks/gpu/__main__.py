"""Run the GPU checks in order and record them: what passed, what failed, what was skipped and why.

    python -m benchmarks.gpu            all of them
    python -m benchmarks.gpu c e        some of them

Each check runs in a separate process group and is killed at its time limit. The other checks still run.  The record
is results/gpu.json.  Checks that are not run now keep their records in it if those come from the same kind of machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from benchmarks import measure
from benchmarks.gpu.checks import CHECKS, Check
from benchmarks.ranks import ROOT


def main(argv: list[str] | None = None) -> int:
    """Run the checks; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"{', '.join(CHECKS)}; a is a1 and a2; default: all")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: only to try the checks out")
    parser.add_argument("--results", type=Path, default=measure.RESULTS, help="folder for the record")
    options = parser.parse_args(argv)
    parts = {given: [name for name in CHECKS if given in (name, name.rstrip("0123456789"))] for given in options.checks}
    if unknown := [given for given, names in parts.items() if not names]:
        parser.error(f"there is no check {', '.join(unknown)}; there are {', '.join(CHECKS)}")

    chosen = list(dict.fromkeys(name for names in parts.values() for name in names)) or list(CHECKS)
    if options.device == "cuda" and not torch.cuda.is_available():
        for letter in chosen:
            print(f"({letter}) skipped: {CHECKS[letter].title}: torch sees no GPU here")
        return 0
    records = {}
    for letter in chosen:
        records[letter] = run(letter, CHECKS[letter], options.device)
        print(in_words(letter, records[letter]), flush=True)
        keep(options.results, records, options.device)
    return int(any(record["outcome"] == "failed" for record in records.values()))


def run(letter: str, check: Check, device: str) -> dict[str, Any]:
    """Run one check in a separate process group; return its record, even after a failure or a time-out."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder) / "record.json", Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.gpu.one", check.function, device, str(file)],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(check.limit_s)
                late = False
            except subprocess.TimeoutExpired:
                late = True
            finally:
                _kill_group(process)
        if file.exists():
            record = json.loads(file.read_text())
        elif late:
            record = {"outcome": "failed", "why": f"not done within {check.limit_s:g} s"}
        else:
            record = {"outcome": "failed", "why": f"ended with exit code {process.returncode} and no record"}
        if record["outcome"] == "failed":
            record["log"] = log.read_text(errors="replace").splitlines()[-40:]
    return {"title": check.title, "seconds": time.monotonic() - started, "limit_s": check.limit_s, **record}


def keep(folder: Path, records: Mapping[str, Any], device: str) -> None:
    """Write the records, and keep the records of other checks from earlier runs on the same kind of machine."""
    name = "gpu" if device == "cuda" else "gpu_on_cpu"
    here = machine(device)
    file = folder / f"{name}.json"
    earlier = json.loads(file.read_text()) if file.exists() else {}
    kept = earlier.get("checks", {}) if earlier.get("machine") == here else {}
    checks = {letter: {**kept, **records}[letter] for letter in CHECKS if letter in {**kept, **records}}
    measure.write_result(folder, name, {"benchmark": "gpu", "checks": checks, "machine": here})


def machine(device: str) -> dict[str, Any]:
    """Return the kind of machine, with the GPU, its driver and the libraries that talk to it."""
    if device == "cpu":
        return {**measure.machine(), "gpu": None}
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
