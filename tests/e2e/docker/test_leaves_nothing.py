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
from pathlib import Path

import pytest

from tests.e2e.docker.client import ROOT, Docker
from tests.e2e.docker.engine import missing
from tests.e2e.docker.machine import snapshot

_READY = "the container is running"


@pytest.mark.skipif("E2E_DOCKER_WAITS" not in os.environ, reason="run by the test below")
def test_that_waits_for_its_end(docker: Docker, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """No image is needed: one program and its libraries, from this machine."""
    programs = [shutil.which("sleep") or "", *_libraries(shutil.which("sleep") or "")]
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        for program in programs:
            archive.add(os.path.realpath(program), program)
    docker("import", str(tmp_path / "root.tar"), "e2e-docker-sleep")
    docker("network", "create", "e2e-docker")
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
    before = snapshot(tmp_path)
    # Reaches no engine, so that the inner one starts its own.
    environ = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/absent.sock", "E2E_DOCKER_WAITS": "1"}
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
    try:
        assert inner.stdout is not None
        said = []
        for line in inner.stdout:
            said.append(line)
            if _READY in line:
                break
        assert _READY in "".join(said), "".join(said)
        during = snapshot(tmp_path)
        assert len(during["processes"]) > len(before["processes"])
        os.killpg(inner.pid, number)  # as a terminal does on Ctrl-C: to all of the group
        inner.communicate(timeout=60)
    finally:
        inner.kill()
        inner.wait()

    shutil.rmtree(tmp_path / "inner", ignore_errors=number != signal.SIGKILL)
    after = snapshot(tmp_path)
    if number == signal.SIGKILL:  # nobody is left to remove files and empty control groups; they are only that
        assert [kind for kind in after if after[kind] != before[kind]] in ([], ["control groups"])
        _remove_groups(after["control groups"] - before["control groups"])
    else:
        assert after == before


def _libraries(program: str) -> list[str]:
    """The shared libraries of a program, with their loader."""
    done = subprocess.run(["ldd", program], check=True, capture_output=True, text=True)
    return [word for word in done.stdout.split() if word.startswith("/")]


def _remove_groups(groups: set[str]) -> None:
    for group in groups:
        for folder, _, _ in os.walk(group, topdown=False):
            Path(folder).rmdir()
