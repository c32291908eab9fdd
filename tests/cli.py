"""Start `python -m train` as people do: alone, by torchrun, or as ranks with an environment of their own."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.ranks import python_path

ROOT = Path(__file__).parent.parent
HANG_S = 600.0  # after which a wait is taken for one that hangs: less than pytest's own limit, so that it says for what
# What a launcher sets; the tests themselves may run under one.
_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_", "PET_", "SLURM_", "TORCHELASTIC_", "GROUP_", "OMP_")


def environment(**extra: str) -> dict[str, str]:
    """This process's environment without any launcher's variables, one thread a process, plus `extra`."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHER)}
    return own | {"OMP_NUM_THREADS": "1", "PYTHONPATH": python_path()} | extra


def command(world_size: int, *flags: str, python: str = sys.executable) -> list[str]:
    """The command that trains on `world_size` processes: plain python for one, torchrun for several."""
    if world_size == 1:
        return [python, "-m", "train", *flags]
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
    return [*torchrun, "-m", "train", *flags]


def train(world_size: int, *flags: str, python: str = sys.executable, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    words = command(world_size, *flags, python=python)
    return subprocess.run(words, env=environment(**extra), cwd=ROOT, capture_output=True, text=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_ranks(
    world_size: int, *flags: str, program: Sequence[str] = ("-m", "train"), python: str = sys.executable, **extra: str
) -> list[subprocess.Popen[str]]:
    """Start each rank by hand, with torchrun's variables or `extra`; `{rank}` in it and in `flags` is filled in."""
    given = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    given |= {"RANK": "{rank}", "LOCAL_RANK": "{rank}", "LOCAL_WORLD_SIZE": str(world_size)} | extra
    return [
        subprocess.Popen(
            [python, *program, *(flag.replace("{rank}", str(rank)) for flag in flags)],
            env=environment(**{name: value.replace("{rank}", str(rank)) for name, value in given.items()}),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]


def wait_until_it_trains(process: subprocess.Popen[str]) -> None:
    """Return once rank 0 has printed its first line of progress."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if "epoch 1/" in line:
            return
    raise AssertionError(f"it ended before: {''.join(seen)}")


def records(run_dir: Path, event: str) -> list[dict[str, Any]]:
    """The records of one kind in RUN_DIR/metrics.jsonl."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["event"] == event]
