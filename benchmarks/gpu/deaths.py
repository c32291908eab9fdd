"""One of two ranks dies, by kill -9 or out of memory: the other must name it and end soon."""

from __future__ import annotations

import re
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu import jobs
from benchmarks.gpu.outcome import Failed, Skipped, together

_START_S = 60.0
# A collective gives up after this time.  CustomDDP names the missing rank after half of it.
TIMEOUT_S = 40.0
# Gloo notices at once that a rank is gone.  On NCCL, torch's watchdog ends the survivor.  It sees the error at once or,
# if NCCL reports none, when the collective times out.  Then it waits for 4 x TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC (15 s
# by default, which a rendered job does not change), so that all ranks can write their last collectives to files.
DUMP_S = 60.0
LIMITS_S = {"cpu": 30.0, "cuda": TIMEOUT_S + DUMP_S + 10}
# Recorded even if the limit is not kept.
_PATIENCE_S = 10.0
FLAGS = (
    "--model=mlp",
    "--epochs=1000",
    "--batch-size=64",
    f"--rendezvous-timeout-s={_START_S:g}",
    f"--collective-timeout-s={TIMEOUT_S:g}",
)
# A line of rank 0 about a step.  Before the first one, each rank is named with its place.
_STEP = re.compile(r"^\d\d:\d\d:\d\d  epoch .*$", re.MULTILINE)


def run(device: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        record = together(
            {
                "kill_9": lambda: killed(device, Path(folder) / "killed"),
                "out_of_memory": lambda: out_of_memory(device, Path(folder) / "memory"),
            }
        )
    return {**record, "limit_s": LIMITS_S[device]}


def killed(device: str, folder: Path) -> dict[str, Any]:
    """Send kill -9 to rank 1 after some steps; return what rank 0 says and when it has ended."""
    with jobs.started(device, folder, FLAGS, ranks=2) as job:
        _wait_for_steps(job)
        job.processes[1].send_signal(signal.SIGKILL)
        return _survivor(job, time.monotonic(), LIMITS_S[device])


def out_of_memory(device: str, folder: Path) -> dict[str, Any]:
    """Make a real allocation fail in rank 1's 50th forward; check what both ranks say and when rank 0 has ended."""
    modules = ("train", "benchmarks.gpu.train_out_of_memory")
    with jobs.started(device, folder, FLAGS, ranks=2, modules=modules) as job:
        _wait_for_steps(job)
        code, _ = job.wait(1, 30.0)
        died = time.monotonic()
        text = job.text(1)
        if code == 0 or not ("out of memory" in text or "can't allocate" in text):
            raise Failed(f"rank 1 ended with {code} and does not say that memory ran out: {text[-500:]}")
        return _survivor(job, died, LIMITS_S[device])


def _wait_for_steps(job: jobs.Job) -> None:
    try:
        job.wait_for("10 steps", lambda: len(job.records("step")) >= 10, _START_S)
    except Failed as error:
        if any(jobs.refuses_one_gpu(job.text(rank)) for rank in (0, 1)):
            raise Skipped("two ranks on one GPU are refused here, by NCCL or by train") from error
        raise


def _survivor(job: jobs.Job, died: float, limit_s: float) -> dict[str, Any]:
    """Return the seconds until rank 0 has named rank 1 and until it has ended, and what it says about rank 1.

    Raises Failed, with what is known, if it does not name rank 1, ends without an error, or needs more than `limit_s`.
    """
    record: dict[str, Any] = {}
    while job.processes[0].poll() is None and time.monotonic() < died + limit_s + _PATIENCE_S:
        if "seconds_to_name" not in record and named(job.text(0)):
            record["seconds_to_name"] = time.monotonic() - died
        time.sleep(0.1)
    seconds, code = time.monotonic() - died, job.processes[0].poll()
    lines = named(job.text(0))
    if lines:
        record.setdefault("seconds_to_name", seconds)
    record |= {"seconds": seconds, "exit_code": code, "message": lines[-1] if lines else None}
    wrong = []
    if code is None:
        wrong.append(f"had not ended after {seconds:.1f} s")
    elif seconds > limit_s:
        wrong.append(f"needed {seconds:.1f} s to end, more than {limit_s:g}")
    if code == 0:
        wrong.append("ended without an error")
    if not lines:
        wrong.append("does not name rank 1")
    if wrong:
        record["last_lines"] = job.text(0).splitlines()[-40:]
        raise Failed(f"rank 0 {' and '.join(wrong)}", record)
    return record


def named(text: str) -> list[str]:
    """Return the lines after the last step in which train names rank 1; NCCL's own warnings do not count."""
    lines = _STEP.split(text)[-1].splitlines()
    return [line for line in lines if re.search(r"\brank 1\b", line) and "NCCL WARN" not in line]
