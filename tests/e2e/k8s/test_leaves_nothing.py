"""After an end of any kind this machine is as it was: no process, network, mount or file more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.e2e.k8s import parts
from tests.e2e.k8s.sandbox import REPOSITORY


def machine() -> dict[str, list[str]]:
    """What a run could leave behind."""
    commands = {
        "processes": "ps -e -o pid= -o args=",
        "links": "ip -brief link",
        "namespaces": "lsns --noheadings --output NS,TYPE",
    }
    found = {what: subprocess.check_output(words.split(), text=True).splitlines() for what, words in commands.items()}
    found["processes"] = [line for line in found["processes"] if "ps -e" not in line]
    found["namespaces"] = sorted(set(found["namespaces"]))
    found["mounts"] = Path("/proc/self/mountinfo").read_text().splitlines()
    found["files"] = sorted(str(path) for folder in (tempfile.gettempdir(), "/run") for path in Path(folder).iterdir())
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_is_left_when_the_run_is_ended_in_the_middle(number: signal.Signals) -> None:
    if os.environ.get("E2E_K8S") != "parts" or parts.find() is None:
        pytest.skip("without parts of a cluster nothing is started")
    before = machine()
    words = [sys.executable, "-m", "tests.e2e.k8s", "--built"]
    env = {**os.environ, "KUBECONFIG": "/dev/null"}
    run = subprocess.Popen(words, cwd=REPOSITORY, env=env, start_new_session=True)
    try:
        # Until there are pods, which have networks, mounts and process namespaces of their own.
        while not any(
            line.endswith("sleep infinity") for line in set(machine()["processes"]) - set(before["processes"])
        ):
            assert run.poll() is None, "it ended before the first pod"
        # To the whole group, as a terminal does it on Ctrl-C; SIGKILL only to the first process.
        (os.kill if number == signal.SIGKILL else os.killpg)(run.pid, number)
        assert run.wait(timeout=200)
    finally:
        run.kill()
        run.wait()
    assert machine() == before
