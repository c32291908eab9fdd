"""`python -m train --procs N`: N processes on this machine without torchrun, for a first run or a notebook."""

import os
import signal
import socket
import subprocess
import sys
import time
from types import FrameType

from train.errors import UserError
from train.world.environment import World
from train.world.signals import EXIT_STOPPED, SIGNALS

_GRACE_S = 30.0
_POLL_S = 0.05


def run_on_this_machine(procs: int, argv: list[str]) -> int:
    """Run `python ARGV` as `procs` ranks; return 0, or the exit code of the first that failed.

    The first failure ends the other ranks, and the last line names its rank; the rank has said why.  A signal is passed
    on, and the ranks save and end.
    """
    ranks = _started(procs, argv)

    def send(number: int, frame: FrameType | None = None) -> None:
        for process in ranks:
            process.send_signal(number)  # nothing happens if it has ended

    for number in SIGNALS:
        signal.signal(number, send)
    while None in (codes := [process.poll() for process in ranks]) and not any(codes):
        time.sleep(_POLL_S)
    first, code = next(((rank, code) for rank, code in enumerate(codes) if code), (0, 0))
    send(signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    for process in ranks:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            send(signal.SIGKILL)
            process.wait()
    if code in (0, EXIT_STOPPED):  # a signal, perhaps to a rank alone: all ranks have saved what they save
        return code
    left_early = ", ".join(str(rank) for rank, ended in enumerate(codes) if ended == 0)
    how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
    before = f"; before that, rank {left_early} ended with exit code 0" if left_early else ""
    print(f"rank {first} failed first ({how}){before}", file=sys.stderr, flush=True)
    return code if code > 0 else 128 - code


def refuse_second_launcher(world: World, option: str) -> None:
    """Raise UserError if this process is a rank already: each rank would start more ranks."""
    if world.launcher != "none":
        raise UserError(
            f"{option} starts the processes itself, but {world.launcher} has started this one as rank {world.rank} of "
            f"{world.world_size}: leave out {option}"
        )


def _started(procs: int, argv: list[str]) -> list[subprocess.Popen[bytes]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    size = str(procs)
    common = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if procs > 1:
        common["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")  # as torchrun
    of_ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "TRAIN_LAUNCHER": "procs"} for rank in range(procs)]
    # In new sessions: Ctrl-C in the terminal reaches only this process, which passes it on once to each rank.
    command = [sys.executable, *argv]
    return [subprocess.Popen(command, env=os.environ | common | own, start_new_session=True) for own in of_ranks]
