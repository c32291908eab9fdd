"""SIGTERM in the middle of an epoch: the run saves, ends with 143, and the next start continues there."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.gpu import jobs
from benchmarks.gpu.outcome import Failed

_TIMEOUT_S = 70.0
LIMIT_S = 20.0
EXIT_STOPPED = 143


def run(device: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = ["--model=mnist_cnn", "--batch-size=64", f"--checkpoint-dir={folder / 'saved'}", "--resume=auto"]
        with jobs.started(device, folder / "first", [*flags, "--epochs=1000"]) as job:
            job.wait_for("10 steps", lambda: len(job.records("step")) >= 10, _TIMEOUT_S)
            job.processes[0].send_signal(signal.SIGTERM)
            code, seconds = job.wait(0, LIMIT_S * 2)
            text, stops = job.text(0), job.records("stop")
        record = {"exit_code": code, "seconds_to_end": seconds, "limit_s": LIMIT_S}
        if code != EXIT_STOPPED or "stopped by a signal" not in text or not stops or not stops[-1]["saved"]:
            raise Failed(f"ended with {code} and this: {text[-500:]}", record)
        if seconds > LIMIT_S:
            raise Failed(f"the end took {seconds:.1f} s", record)
        stopped_at = stops[-1]["step"]
        with jobs.started(device, folder / "second", [*flags, f"--max-steps={stopped_at + 5}", "--epochs=1000"]) as job:
            job.finish(_TIMEOUT_S)
            first = job.records("step")[0]["step"]
    record |= {"stopped_at_step": stopped_at, "continued_at_step": first}
    if first != stopped_at + 1:
        raise Failed(f"stopped after step {stopped_at} and continued with step {first}", record)
    return record
