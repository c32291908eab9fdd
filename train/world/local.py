"""`python -m train --procs N`: N processes on this machine without torchrun, for a first run or a notebook."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from train.errors import UserError
from train.world.environment import World
from train.world.signals import EXIT_STOPPED, SIGNALS

_GRACE_S = 30.0
_POLL_S = 0.05


def train_on_this_machine(procs: int, argv: list[str]) -> int:
    """Run `python -m train ARGV` as `procs` ranks; return 0, or the exit code of the first that failed.

    The ranks have the environment that torchrun would give them, so the result is the same.  The first failure ends the
    other ranks, and its reason is printed as the last line, unless it is a mistake that the ranks have printed.  A
    signal is passed on, and the ranks save and end.
    """
    with tempfile.TemporaryDirectory(prefix="train-procs-") as folder:
        ranks = _Ranks(procs, argv, Path(folder))
        for number in SIGNALS:
            signal.signal(number, ranks.pass_on)
        return ranks.wait()


def refuse_second_launcher(world: World) -> None:
    """Raise UserError if this process is a rank already: each rank would start more ranks."""
    if world.launcher != "none":
        raise UserError(
            f"--procs starts the processes itself, but {world.launcher} has started this one as rank {world.rank} of "
            f"{world.world_size}: leave out --procs"
        )


class _Ranks:
    def __init__(self, procs: int, argv: list[str], folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        common = {
            "WORLD_SIZE": str(procs),
            "LOCAL_WORLD_SIZE": str(procs),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TRAIN_LAUNCHER": "procs",
        }
        if procs > 1:
            common["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")  # as torchrun
        # In new sessions: Ctrl-C in the terminal reaches only this process, which passes it on once to each rank.
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "train", *argv],
                env=os.environ | common | {name: str(rank) for name in ("RANK", "LOCAL_RANK")} | self._error_file(rank),
                start_new_session=True,
            )
            for rank in range(procs)
        ]

    def wait(self) -> int:
        """Return the exit code when all ranks have ended; once one has failed, end the other ranks."""
        while all(process.poll() in (None, 0) for process in self._processes):
            if all(process.poll() == 0 for process in self._processes):
                return 0
            time.sleep(_POLL_S)
        first, code = next((rank, p.returncode) for rank, p in enumerate(self._processes) if p.poll() not in (None, 0))
        left_early = [rank for rank, process in enumerate(self._processes) if process.poll() == 0]
        self._end_all(signal.SIGTERM)
        if code == EXIT_STOPPED:  # a signal, perhaps to a rank alone: all ranks have saved what they save
            return EXIT_STOPPED
        if not self._mistake_is_printed(first):
            reason = f": {self._left(first)['message']}" if self._left(first) else ""
            before = f"; before that, rank {', '.join(map(str, left_early))} ended with exit code 0" * bool(left_early)
            print(f"error: rank {first} failed first ({_in_words(code)}){reason}{before}", file=sys.stderr, flush=True)
        return code if code > 0 else 128 - code

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        self._send(number)

    def _end_all(self, number: int) -> None:
        self._send(number)
        deadline = time.monotonic() + _GRACE_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._send(signal.SIGKILL)
                process.wait()

    def _send(self, number: int) -> None:
        for process in self._processes:
            process.send_signal(number)  # nothing happens if it has ended

    def _error_file(self, rank: int) -> dict[str, str]:
        return {"TORCHELASTIC_ERROR_FILE": str(self._folder / f"rank-{rank}.json")}

    def _mistake_is_printed(self, rank: int) -> bool:
        """Return True if a rank failed by a mistake of the user, which rank 0 has printed for all ranks."""
        left = self._left(rank)
        return (
            bool(left) and "py_callstack" not in left["extraInfo"] and left["message"] == self._left(0).get("message")
        )

    def _left(self, rank: int) -> dict[str, Any]:
        """Return what the rank has left in the file of train/world/failure.py; empty if it has left nothing."""
        with suppress(OSError, ValueError, LookupError):
            left = json.loads(Path(self._error_file(rank)["TORCHELASTIC_ERROR_FILE"]).read_text())
            return dict(left["message"])
        return {}


def _in_words(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
