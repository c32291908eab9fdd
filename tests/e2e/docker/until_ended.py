"""The test that test_leaves_nothing.py starts and ends: a container, a network and a volume, and it waits for ever."""

import os
import shutil
import signal
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.e2e.docker.client import Docker

READY = "the container is running"


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
        print(READY, flush=True)
    signal.pause()


def _libraries(program: str) -> list[str]:
    """The shared libraries of a program, with their loader."""
    done = subprocess.run(["ldd", program], check=True, capture_output=True, text=True)
    return [word for word in done.stdout.split() if word.startswith("/")]
