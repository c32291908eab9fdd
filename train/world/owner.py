"""The owner of a folder: one run at a time writes records and checkpoints there.

The file `.owner.json` names the job and shows a new heartbeat every few seconds.  A lock of the file system would fail
silently on some network file systems.  The clocks of hosts may differ, so a heartbeat counts as new if it changes while
somebody looks.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from train.errors import UserError

_BEAT_S, _SILENCE_S, _POLL_S = 3.0, 15.0, 0.2


class Owner:
    """Owns `folder` from now on: until `release`, or until the process ends.

    The next start of the same job (of one Slurm job, Kubernetes job or torchrun) takes the folder over at once.  So
    does any start on the same machine once the owner's process is gone.  Others look for a heartbeat first.  An owner
    that has lost its folder ends at its next heartbeat.
    Raises UserError, naming the owner, if another run is alive; OSError if the folder cannot be written.
    """

    def __init__(self, folder: Path, say: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file, self._say = folder / ".owner.json", say
        self._own: dict[str, Any] = {
            "run": uuid.uuid4().hex,
            "job": _job(environ),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "process": _process(os.getpid()),
            "beat": 0,
        }
        self._released = threading.Event()
        self._wait_for_former()
        self._write()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def release(self) -> None:
        self._released.set()
        self._thread.join()
        if (self._read() or {}).get("run") == self._own["run"]:
            self._file.unlink(missing_ok=True)

    def _wait_for_former(self) -> None:
        with suppress(FileExistsError), self._file.open("x") as made:
            made.write(json.dumps(self._own))
            return  # nobody: of two that come at the same time only one makes the file
        first = self._read()
        if first is None:  # another run makes it at this moment, or a power cut has left half of it
            time.sleep(1)
            first = self._read()
        deadline = time.monotonic() + _SILENCE_S
        told, now = False, first
        while now is not None:
            here = now["process"][:2] == self._own["process"][:2]
            if now["process"] == self._own["process"]:  # an earlier run of this process, which has ended by an error
                return
            if now["process"] != _process(now["pid"]) if here else now["job"] == self._own["job"]:
                return
            late = time.monotonic() > deadline
            if late if here else now != first:
                raise UserError(
                    f"{self._file.parent} belongs to a run that has not ended: {_in_words(now)}. Two runs in one "
                    "folder would mix their files: give another folder, or end that run first"
                )
            if late:
                return
            if not told:
                told = True
                wait = f"waiting up to {_SILENCE_S:g} s for " + (
                    "its end" if here else "a sign of life. Without one, this run takes the folder over"
                )
                self._say(f"{self._file.parent} belongs to {_in_words(now)}: {wait}")
            time.sleep(_POLL_S)
            now = self._read()

    def _beat(self) -> None:
        while not self._released.wait(_BEAT_S):
            now = self._read()
            if now is not None and now["run"] != self._own["run"]:
                if now["process"] == self._own["process"]:
                    return
                self._say(f"{self._file.parent} was taken over by {_in_words(now)}: this run ends")
                os._exit(1)
            self._own["beat"] += 1
            with suppress(OSError):  # a full disk, say: the run continues
                self._write()

    def _read(self) -> dict[str, Any] | None:
        with suppress(OSError, ValueError, LookupError, TypeError):
            owner: dict[str, Any] = json.loads(self._file.read_bytes())
            return owner if {"run", "job", "host", "pid", "process"} <= owner.keys() else None
        return None

    def _write(self) -> None:
        beside = self._file.with_name(f".owner-{self._own['run']}.json")
        beside.write_text(json.dumps(self._own))
        beside.replace(self._file)


def _job(environ: Mapping[str, str]) -> str:
    """Return a name that only the starts of this job have."""
    if job := environ.get("SLURM_JOB_ID"):
        return f"Slurm job {job}"
    head = next(
        (environ[name] for name in ("PET_MASTER_ADDR", "PET_RDZV_ENDPOINT", "MASTER_ADDR") if name in environ), ""
    )
    if head and "KUBERNETES_SERVICE_HOST" in environ:
        return f"the Kubernetes job of {head}"
    return f"a run started by process {' '.join(_process(os.getppid()))}"


def _process(pid: int) -> list[str]:
    """Return what no other process has: boot, namespace of IDs, ID, and time of start, which is "" if it is gone."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        state, *fields = stat_of(pid)
        start = "" if state in ("gone", "Z", "X") else fields[18]
        return [boot, str(Path("/proc/self/ns/pid").readlink()), str(pid), start]
    except OSError:  # not Linux
        return [socket.gethostname(), "", str(pid), ""]


def stat_of(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name: first the state (T is stopped, Z and X ended), or `gone`."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["gone"]


def _in_words(owner: Mapping[str, Any]) -> str:
    return f"{owner['job']} (host {owner['host']}, pid {owner['pid']})"
