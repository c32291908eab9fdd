"""The owner of a folder: one run at a time writes records and checkpoints there.

The file `.owner.json` names the job, and changes every few seconds as long as the owner lives.  A lock of the file
system would fail silently on some network file systems.  The clocks of hosts may differ, so what counts is a change
while somebody looks.
"""

import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from train.errors import UserError

_SILENCE_S, _POLL_S = 15.0, 0.2


class Owner:
    """Owns `folder` until `release`, or until the process ends.  The watchdog's thread calls `renew` meanwhile.

    The next start of the same job takes the folder over at once, as does any start on the same machine once the owner's
    process is gone.  Others wait for a sign of life first.  Raises UserError, naming the owner, if another run lives.
    """

    def __init__(self, folder: Path, say: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file, self._say = folder / ".owner.json", say
        process = _process(os.getpid())
        self._own = {"run": uuid.uuid4().hex, "job": _job(environ), "host": socket.gethostname(), "process": process}
        self._wait_for_former()
        self._write()

    def renew(self) -> None:
        """Show that this run lives.  If another one has taken the folder over, end the process."""
        now = self._read()
        if now is None:
            return
        if now["run"] == self._own["run"]:
            with suppress(OSError):  # a full disk, say: the run continues
                self._write()
        elif now["process"] != self._own["process"]:
            self._say(f"{self._file.parent} was taken over by {_in_words(now)}: this run ends")
            os._exit(1)

    def release(self) -> None:
        if (self._read() or {}).get("run") == self._own["run"]:
            self._file.unlink(missing_ok=True)

    def _wait_for_former(self) -> None:
        first = now = self._read()
        deadline = time.monotonic() + _SILENCE_S
        while now is not None and not self._may_follow(now):
            if now is first:
                self._say(
                    f"{self._file.parent} belongs to {_in_words(now)}: waiting up to {_SILENCE_S:g} s for its end"
                )
            elsewhere, late = not self._is_here(now), time.monotonic() > deadline
            if elsewhere and late and now == first:
                return
            if late or (elsewhere and now != first):
                raise UserError(
                    f"{self._file.parent} belongs to a run that has not ended: {_in_words(now)}. Two runs in one "
                    "folder would mix their files: give another folder, or end that run first"
                )
            time.sleep(_POLL_S)
            now = self._read()

    def _may_follow(self, owner: Mapping[str, Any]) -> bool:
        """Return True for the same job on another machine, and on this one for a process that is gone, or is this."""
        if self._is_here(owner):
            process: list[str] = owner["process"]
            return process == self._own["process"] or process != _process(int(process[2]))
        return bool(owner["job"] == self._own["job"])

    def _is_here(self, owner: Mapping[str, Any]) -> bool:
        return bool(owner["process"][:2] == self._own["process"][:2])

    def _read(self) -> dict[str, Any] | None:
        with suppress(OSError, ValueError):
            owner: dict[str, Any] = json.loads(self._file.read_bytes())
            return owner
        return None

    def _write(self) -> None:
        beside = self._file.with_name(f".owner-{self._own['run']}.json")
        beside.write_text(json.dumps(self._own | {"time": time.time()}))
        beside.replace(self._file)


def _job(environ: Mapping[str, str]) -> str:
    """Return a name that only the starts of this job have."""
    if job := environ.get("SLURM_JOB_ID"):
        return f"Slurm job {job}"
    names = ("PET_MASTER_ADDR", "PET_RDZV_ENDPOINT", "MASTER_ADDR")
    head = next((environ[name] for name in names if name in environ), "")
    if head and "KUBERNETES_SERVICE_HOST" in environ:
        return f"the Kubernetes job of {head}"
    return f"a run started by process {' '.join(_process(os.getppid()))}"


def _process(pid: int) -> list[str]:
    """Return what no other process has: boot, namespace of IDs, ID, and time of start, which is "" if it is gone."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return [boot, str(Path("/proc/self/ns/pid").readlink()), str(pid), started(pid)]
    except OSError:  # not Linux: the sign of life decides
        return [uuid.uuid4().hex, "", str(pid), ""]


def started(pid: int) -> str:
    """Return the time at which a process of this machine has started; "" if it has ended.  Source: proc(5), stat."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else fields[18]


def _in_words(owner: Mapping[str, Any]) -> str:
    return f"{owner['job']} (host {owner['host']}, pid {owner['process'][2]})"
