"""Start `python -m train` on one device, alone or as two ranks, and read what it writes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.outcome import Failed, OutOfTime
from benchmarks.ranks import ROOT, end_with_parent, python_path

# Variables that a launcher sets; the checks themselves may run under a launcher.
_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_", "PET_", "SLURM_", "TORCHELASTIC_", "GROUP_", "NODE_RANK")
BASE_FLAGS = ("--dataset=synthetic", "--dropout=0", "--log-every=1")
_LOG_LINES = 60
# No loader processes, and only samples that are read are made, so that short runs start at once.
SHORT_RUN = (*BASE_FLAGS, "--input=loader", "--workers=0")


def nccl_variables(rank: int) -> dict[str, str]:
    """Return variables with which NCCL may accept two ranks on one GPU.

    From 2.30 on NCCL has a switch for it.  Earlier versions take the ranks for two hosts, connected through sockets.
    """
    # Without NCCL_DEBUG the reason of a refusal is not in the error.
    shared = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_DEBUG": "WARN"}
    return {"NCCL_HOSTID": f"host-{rank}", **shared}


def refuses_one_gpu(text: str) -> bool:
    """Return True if the output of a rank says that NCCL does not connect two ranks on one GPU.

    A refusal by train itself cannot occur, because the variables above turn it off.
    """
    return any(words in text for words in ("Duplicate GPU", "same GPU", "ncclInvalidUsage"))


@dataclass
class Job:
    """The processes of one run, by rank; `logs` holds the file with the output of each."""

    processes: list[subprocess.Popen[bytes]]
    logs: list[Path]
    run_dir: Path

    def text(self, rank: int) -> str:
        return self.logs[rank].read_text(errors="replace")

    def records(self, event: str) -> list[dict[str, Any]]:
        """Return the records of one kind so far."""
        file = self.run_dir / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [record for record in map(json.loads, lines) if record["event"] == event]

    def wait_for(self, what: str, reached: Callable[[], bool], timeout_s: float) -> None:
        """Return once `reached()` is true.  Raises Failed if a process ends first, or after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not reached():
            for rank, process in enumerate(self.processes):
                if process.poll() is not None:
                    raise Failed(f"rank {rank} ended before {what}: {self.text(rank)[-500:]}")
            if time.monotonic() > deadline:
                raise Failed(f"no {what} within {timeout_s:g} s: {self.text(0)[-500:]}")
            time.sleep(0.05)

    def wait(self, rank: int, timeout_s: float) -> tuple[int, float]:
        """Return a rank's exit code and the seconds until it ended.  Raises Failed if it does not end."""
        started = time.monotonic()
        try:
            code = self.processes[rank].wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"rank {rank} did not end within {timeout_s:g} s: {self.text(rank)[-500:]}") from None
        return code, time.monotonic() - started

    def finish(self, timeout_s: float) -> str:
        """Wait until all ranks have ended without error; return the hash of the weights."""
        for rank in range(len(self.processes)):
            code, _ = self.wait(rank, timeout_s)
            if code != 0:
                raise Failed(f"rank {rank} ended with {code}: {self.text(rank)[-800:]}")
        [end] = self.records("end")[-1:]
        return str(end["weights_sha256"])

    def finish_in_time(self, limit_s: float) -> None:
        """Wait as `finish` does, for a run that is long but does not hang: raise OutOfTime if it has not ended then."""
        try:
            self.finish(limit_s)
        except Failed:
            if any(process.poll() is None for process in self.processes):
                raise OutOfTime(f"ran out of time: the training had not ended after {limit_s:.0f} s") from None
            raise


@contextmanager
def started(
    device: str,
    folder: Path,
    flags: Sequence[str],
    ranks: int = 1,
    modules: Sequence[str] = ("train", "train"),
    base: Sequence[str] = SHORT_RUN,
) -> Iterator[Job]:
    """Start a run of `ranks` processes that all compute on the same device; kill them at the end.

    modules: what each rank runs, `train` or a module that then calls it.
    base: flags that stand before `flags`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHER)}
    own |= {"PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1" if ranks > 1 else own.get("OMP_NUM_THREADS", "4")}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    job = Job([], [folder / f"rank-{rank}.log" for rank in range(ranks)], folder / "run")
    try:
        for rank in range(ranks):
            where = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            where |= {"GROUP_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            if ranks > 1 and device == "cuda":
                where |= nccl_variables(rank)
            command = [sys.executable, "-m", modules[rank], f"--device={device}", f"--run-dir={job.run_dir}"]
            with job.logs[rank].open("wb") as log:
                job.processes.append(
                    subprocess.Popen(
                        [*command, *base, *flags],
                        env=own | (where if ranks > 1 else {}),
                        cwd=ROOT,
                        preexec_fn=end_with_parent,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
        yield job
    except BaseException:
        # The folder may be gone soon; what is printed here is in the record of a check that has not passed.
        for rank, file in enumerate(job.logs):
            lines = file.read_text(errors="replace").splitlines()[-_LOG_LINES:] if file.exists() else []
            print(f"last lines of rank {rank}:", *lines, sep="\n", flush=True)
        raise
    finally:
        for process in job.processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
