"""However a cluster ends, the machine is as it was before: no process, namespace, bridge, network card or mount."""

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli import ROOT
from tests.e2e.slurm.cluster import missing

pytestmark = pytest.mark.timeout(900)

_USE = """
import json, os, sys
from pathlib import Path
from tests.e2e.slurm.cluster import Cluster
folder, how = Path(sys.argv[1]), sys.argv[2]
if how == "fails-to-start":
    (folder / "system").write_text("no folder")
with Cluster(folder, ["n2", "n10"]) as cluster:
    job = cluster.submit("#!/bin/bash\\n#SBATCH --nodes=2\\nsrun sleep 1000\\n")
    cluster.wait_for_state(job, "RUNNING")
    machines = [cluster.control, *cluster.machines.values()]
    kinds = ("net", "pid", "mnt", "uts")
    print(json.dumps([os.readlink(f"/proc/{machine.pid}/ns/{kind}") for machine in machines for kind in kinds]))
    print("up", flush=True)
    sys.stdin.read()
    if how == "raises":
        raise RuntimeError("in the middle of a test")
"""


def _processes_in(namespaces: set[str]) -> dict[str, str]:
    """All processes in these namespaces: numbers, and command lines with the times of their start."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may end in the meantime
            if namespaces & {str((process / "ns" / kind).readlink()) for kind in ("net", "mnt", "uts", "pid")}:
                found[process.name] = _identity(process)
    return found


def _identity(process: Path) -> str:
    started = (process / "stat").read_text().rpartition(")")[2].split()[19]
    return (process / "cmdline").read_text().replace("\0", " ") + started


def _alive(processes: dict[str, str]) -> list[str]:
    """Which of the processes are still there; their numbers may be others' by now."""
    left = []
    for number, identity in processes.items():
        with suppress(OSError):
            if _identity(Path("/proc") / number) == identity:
                left.append(identity)
    return left


def _left_on_this_machine(folder: Path) -> list[str]:
    """Network cards and mounts of a cluster that are seen from outside of it, and names of namespaces."""
    links = subprocess.run(["ip", "-oneline", "link"], check=True, capture_output=True, text=True, timeout=60).stdout
    left = [line for line in links.splitlines() if "switch" in line or "to-n" in line]
    left += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]
    named = Path("/run/netns")
    return left + ([path.name for path in named.iterdir()] if named.is_dir() else [])


@pytest.mark.parametrize("how", ["ends", "raises", "fails-to-start", "ctrl-c", "is-killed"])
def test_nothing_is_left_of_a_cluster_that(how: str, tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(f"no Slurm: {reason}")
    before = _left_on_this_machine(tmp_path)
    user = subprocess.Popen(
        [sys.executable, "-c", _USE, str(tmp_path), how],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert user.stdout is not None
    namespaces = set(json.loads(user.stdout.readline() or "[]"))
    processes = {}
    if how != "fails-to-start":
        assert user.stdout.readline() == "up\n", user.communicate()
        assert len(namespaces) == 12
        processes = _processes_in(namespaces)
        assert sum("slurmd -D" in line for line in processes.values()) >= 2
    if how == "ctrl-c":
        user.send_signal(signal.SIGINT)
    elif how == "is-killed":
        user.kill()
    _, said = user.communicate(timeout=120)
    assert (user.returncode == 0) == (how == "ends"), said
    if how == "is-killed":  # nobody waits then until the kernel has done its part
        deadline = time.monotonic() + 60
        while _alive(processes) and time.monotonic() < deadline:
            time.sleep(0.1)
    assert _alive(processes) == []
    assert _left_on_this_machine(tmp_path) == before
    daemons = subprocess.run(["pgrep", "--full", str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert daemons.stdout == ""
