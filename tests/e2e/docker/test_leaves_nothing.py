"""An engine of our own leaves the machine as it was, however pytest ends.

The inner pytest runs the one test below that waits, with the engine, a network, a volume and a container of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.docker.client import ROOT, Docker
from tests.e2e.docker.engine import cgroup_of, cgroups, missing, remove_cgroups
from tests.e2e.docker.machine import descendants, namespaces, processes_in, seen_outside, still_running

_READY = "the container is running"


@pytest.mark.skipif("E2E_DOCKER_BRIDGE" not in os.environ, reason="run by the test below")
def test_that_waits_for_its_end(docker: Docker, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """No image is needed: one program and its libraries, from this machine."""
    programs = [shutil.which("sleep") or "", *_libraries(shutil.which("sleep") or "")]
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        for program in programs:
            archive.add(os.path.realpath(program), program)
    docker("import", str(tmp_path / "root.tar"), "e2e-docker-sleep")
    bridge = os.environ["E2E_DOCKER_BRIDGE"]
    docker("network", "create", f"--opt=com.docker.network.bridge.name={bridge}", "e2e-docker")
    docker("volume", "create", "e2e-docker")
    container = ["--volume=e2e-docker:/data", "--publish=127.0.0.1:0:80", "--restart=always", "e2e-docker-sleep"]
    docker("run", "--detach", "--network=e2e-docker", *container, programs[0], "1000")
    with capfd.disabled():
        print(_READY, flush=True)
    signal.pause()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_is_left_behind_when_pytest_is_ended_by(number: signal.Signals, tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(f"no engine of our own: {reason}")
    bridge = f"e2e-{os.getpid()}"
    before = seen_outside(bridge, tmp_path)
    # Reaches no engine, so that the inner one starts its own.
    environ = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/absent.sock", "E2E_DOCKER_BRIDGE": bridge}
    words = ["-p", "no:cacheprovider", f"--basetemp={tmp_path}/inner", "-k", "test_that_waits", __file__]
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
            if _READY in line:
                break
        assert _READY in "".join(said), "".join(said)
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


def _libraries(program: str) -> list[str]:
    """The shared libraries of a program, with their loader."""
    done = subprocess.run(["ldd", program], check=True, capture_output=True, text=True)
    return [word for word in done.stdout.split() if word.startswith("/")]
