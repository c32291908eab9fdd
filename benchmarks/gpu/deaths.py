"""One of two ranks dies, by kill -9 or out of memory: the other must name it and end soon."""

from __future__ import annotations

import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu import jobs
from benchmarks.gpu.outcome import Failed, Skipped, together

_START_S = 140.0
# A collective gives up after this time; a survivor that waits so long did not notice the death, but still says so.
TIMEOUT_S = 60.0
LIMIT_S = 30.0
FLAGS = (
    "--model=mlp",
    "--epochs=1000",
    "--batch-size=64",
    f"--rendezvous-timeout-s={TIMEOUT_S:g}",
    f"--collective-timeout-s={TIMEOUT_S:g}",
)


def run(device: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        record = together(
            {
                "kill_9": lambda: killed(device, Path(folder) / "killed"),
                "out_of_memory": lambda: out_of_memory(device, Path(folder) / "memory"),
            }
        )
    record["limit_s"] = LIMIT_S
    slow = [name for name in ("kill_9", "out_of_memory") if record[name]["seconds"] > LIMIT_S]
    if slow:
        raise Failed(f"the survivor needed more than {LIMIT_S:g} s after {' and '.join(slow)}", record)
    return record


def killed(device: str, folder: Path) -> dict[str, Any]:
    """Send kill -9 to rank 1 after some steps; return what rank 0 says and when it has ended."""
    with jobs.started(device, folder, FLAGS, ranks=2) as job:
        _wait_for_steps(job)
        job.processes[1].send_signal(signal.SIGKILL)
        return _survivor(job, time.monotonic())


def out_of_memory(device: str, folder: Path) -> dict[str, Any]:
    """Make a real allocation fail in rank 1's 50th forward; check what both ranks say and when rank 0 has ended."""
    modules = ("train", "benchmarks.gpu.train_out_of_memory")
    with jobs.started(device, folder, FLAGS, ranks=2, modules=modules) as job:
        _wait_for_steps(job)
        code, _ = job.wait(1, LIMIT_S)
        died = time.monotonic()
        text = job.text(1)
        if code == 0 or not ("out of memory" in text or "can't allocate" in text):
            raise Failed(f"rank 1 ended with {code} and does not say that memory ran out: {text[-500:]}")
        return _survivor(job, died)


def _wait_for_steps(job: jobs.Job) -> None:
    try:
        job.wait_for("10 steps", lambda: len(job.records("step")) >= 10, _START_S)
    except Failed as error:
        words = ("Duplicate GPU", "same GPU", "same device", "ncclInvalidUsage")
        if any(word in job.text(rank) for word in words for rank in (0, 1)):
            raise Skipped("two ranks on one GPU are refused here, by NCCL or by train") from error
        raise


def _survivor(job: jobs.Job, died: float) -> dict[str, Any]:
    code, _ = job.wait(0, TIMEOUT_S + 30)
    seconds = time.monotonic() - died
    text = job.text(0)
    lines = [line for line in text.splitlines() if "rank 1" in line]
    if code == 0 or not lines:
        raise Failed(f"rank 0 ended with {code} after {seconds:.1f} s and does not name rank 1: {text[-800:]}")
    return {"seconds": seconds, "exit_code": code, "message": lines[-1]}
