"""Run a function on several processes of one thread each that are connected as the ranks of one job: `run_ranks`.

The processes meet through a file, so they may sit in different network namespaces.  They end when the process that
started them ends, even if it is killed.  `run_as_torchrun` leaves it to the function to connect them.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
_LIBC = ctypes.CDLL(None)  # loaded here, because little may be done between fork and exec


@dataclass(frozen=True)
class Node:
    """Where a rank runs: the command that starts processes there, and the network interface that they use."""

    enter: tuple[str, ...] = ()
    interface: str = "lo"


HERE = Node()


def run_ranks(
    function: Callable[..., Any],
    nodes: Sequence[Node],
    timeout_s: float,
    *,
    backend: str = "gloo",
    **arguments: Any,
) -> list[Any]:
    """Run `function(**arguments)` in one process for each of `nodes`; return the results by rank.

    Args:
        function: must be in a module that can be imported; arguments and result go through JSON.
        timeout_s: for the whole run, and for each collective in it.
    Raises RuntimeError if a rank fails (its traceback is printed by then) or is not done in time.
    """
    task = {
        "module": function.__module__,
        "function": function.__name__,
        "arguments": arguments,
        "world_size": len(nodes),
        "backend": backend,
        "timeout_s": timeout_s,
    }
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "task.json").write_text(json.dumps(task))
        deadline = time.monotonic() + timeout_s
        try:
            for rank, node in enumerate(nodes):
                command = [*node.enter, sys.executable, "-m", __name__, folder, str(rank)]
                environment = os.environ | {
                    "GLOO_SOCKET_IFNAME": node.interface,
                    "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": python_path(),
                }
                # In a separate session, so that Ctrl-C reaches only the parent, which then ends the ranks.
                processes.append(subprocess.Popen(command, env=environment, start_new_session=True))
            for rank, process in enumerate(processes):
                if process.wait(max(0.0, deadline - time.monotonic())):
                    raise RuntimeError(f"rank {rank} of {len(nodes)} failed with exit code {process.returncode}")
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{len(nodes)} ranks were not done within {timeout_s:g} s") from None
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(len(nodes))]


def run_as_torchrun(
    processes: int, preload: Sequence[str], function: Callable[..., None], *arguments: Any, may_fail: bool = False
) -> None:
    """Run `function(*arguments)` in processes with torchrun's variables; when one fails, SIGTERM ends the others.

    preload: modules that are imported once for all calls.
    Raises RuntimeError if one fails that must not.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = get_context("forkserver")
    context.set_forkserver_preload([*preload])
    places = [(rank, processes, port, function, arguments) for rank in range(processes)]
    ranks = [context.Process(target=_rank_of_torchrun, args=place, daemon=True) for place in places]
    for rank in ranks:
        rank.start()
    while running := [rank for rank in ranks if rank.exitcode is None]:
        for rank in running if any(rank.exitcode for rank in ranks) else ():
            rank.terminate()
        connection.wait([rank.sentinel for rank in running])
    if not may_fail and any(codes := [rank.exitcode for rank in ranks]):
        raise RuntimeError(f"{processes} processes ended with the exit codes {codes}")


def _rank_of_torchrun(rank: int, processes: int, port: int, function: Callable[..., None], arguments: Any) -> None:
    import torch

    counts = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    variables = {**counts, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "benchmark"}
    os.environ.update({name: str(value) for name, value in variables.items()})
    end_with_parent()
    torch.set_num_threads(1)
    try:
        function(*arguments)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # multiprocessing would leave out what the function has put there
        os._exit(1)
    os._exit(0)


def python_path(root: Path = ROOT) -> str:
    """Return PYTHONPATH with `root`, then this repository, before the folders that it had already."""
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*dict.fromkeys((str(root), str(ROOT))), *([given] if given else [])])


def end_with_parent() -> None:
    """Have the kernel kill this process when the one that started it ends.  Also for Popen's preexec_fn."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _rank(folder: Path, rank: int) -> None:
    import torch
    import torch.distributed as dist

    task = json.loads((folder / "task.json").read_text())
    torch.set_num_threads(1)
    dist.init_process_group(
        task["backend"],
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=task["world_size"],
        timeout=timedelta(seconds=task["timeout_s"]),
    )
    result = getattr(import_module(task["module"]), task["function"])(**task["arguments"])
    (folder / f"{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    end_with_parent()
    _rank(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    # At once: with several groups of native DDP, about one process in ten was aborted during a normal exit.
    os._exit(0)
