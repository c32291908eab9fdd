"""An engine of our own leaves the machine as it was, however pytest ends.

The inner pytest runs the test in until_ended.py, which waits, with an engine, a network, a volume and a container.
"""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.docker.client import ROOT
from tests.e2e.docker.engine import cgroup_of, cgroups, missing, remove_cgroups
from tests.e2e.docker.machine import descendants, namespaces, processes_in, seen_outside, still_running
from tests.e2e.docker.until_ended import READY

# Not collected as a test of its own, since it waits for ever.
_WAITS = Path(__file__).parent / "until_ended.py"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_is_left_behind_when_pytest_is_ended_by(number: signal.Signals, tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(f"no engine of our own: {reason}")
    bridge = f"e2e-{os.getpid()}"
    before = seen_outside(bridge, tmp_path)
    # Reaches no engine, so that the inner one starts its own.
    environ = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/absent.sock", "E2E_DOCKER_BRIDGE": bridge}
    words = ["-p", "no:cacheprovider", f"--basetemp={tmp_path}/inner", str(_WAITS)]
    inner = subprocess.Popen(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with ExitStack() as handles:
        handles.callback(inner.wait)
        handles.callback(inner.kill)
        assert inner.stdout is not None
        said = []
        for line in inner.stdout:
            said.append(line)
            if READY in line:
                break
        assert READY in "".join(said), "".join(said)
        processes = descendants(inner.pid)
        assert {"dockerd", "containerd", "slirp4netns", "sleep"} <= set(processes.values())
        ends = [os.pidfd_open(pid) for pid in processes]
        for end in ends:
            handles.callback(os.close, end)
        theirs = namespaces(processes)
        assert processes_in(theirs)
        assert seen_outside(bridge, tmp_path) == before
        os.killpg(inner.pid, number)  # as a terminal does on Ctrl-C: to all of the group
        inner.communicate(timeout=120)
        # After SIGKILL nobody has waited until the kernel has done its part.
        assert still_running(ends, 60.0 if number == signal.SIGKILL else 0.0) == 0

    assert processes_in(theirs) == []
    assert seen_outside(bridge, tmp_path) == before
    if number == signal.SIGKILL:
        # Nobody was left to remove files and control groups; that the groups can be removed shows them empty.
        remove_cgroups(cgroup_of(inner.pid))
    else:
        assert cgroups(cgroup_of(inner.pid)) == []
        assert list(tmp_path.glob("inner/**/engine")) == []
