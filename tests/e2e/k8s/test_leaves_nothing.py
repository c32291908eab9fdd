"""After an end of any kind nothing is left of what a run has started: no process, namespace, link, mount or file."""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.k8s import parts
from tests.e2e.k8s.sandbox import REPOSITORY


@pytest.fixture
def home() -> Iterator[Path]:
    """A home that the run's own tmpfs does not hide."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_is_left_when_the_run_is_ended_in_the_middle(number: signal.Signals, home: Path) -> None:
    if os.environ.get("E2E_K8S") != "parts" or parts.find() is None:
        pytest.skip("nothing is started without parts of a cluster: `make e2e-k8s` finds or builds them")
    links, mounts = _links(), _mounts()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    own = {"HOME": str(home), "TMPDIR": str(home), "XDG_CACHE_HOME": str(cache), "KUBECONFIG": "/dev/null"}
    words = [sys.executable, "-m", "tests.e2e.k8s", "--built"]
    run = subprocess.Popen(words, cwd=REPOSITORY, env={**os.environ, **own}, start_new_session=True)
    try:
        # Until there are pods, which have networks, mounts and process namespaces of their own.
        while not _pods(started := _family(run.pid)):
            assert run.poll() is None, "it ended before the first pod"
            time.sleep(0.2)
        processes = list(_opened(started))
        namespaces = set().union(*map(_namespaces, started)) - _namespaces(os.getpid())
        assert namespaces
        # To the whole group, as a terminal does it on Ctrl-C; SIGKILL only to the first process.
        (os.kill if number == signal.SIGKILL else os.killpg)(run.pid, number)
        assert run.wait(timeout=200)
    finally:
        run.kill()
        run.wait()
    assert all(map(_ends, processes))
    everybody = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    assert not [pid for pid in everybody if _namespaces(pid) & namespaces]
    assert (_links() - links, _mounts() - mounts) == (set(), set())
    assert not list(home.iterdir())


def _family(pid: int) -> list[int]:
    """A process and all that descend from it, as seen from here."""
    children: list[str] = []
    with suppress(OSError):  # it has ended
        for thread in Path(f"/proc/{pid}/task").glob("*/children"):
            children += thread.read_text().split()
    return [pid, *(one for child in children for one in _family(int(child)))]


def _pods(pids: list[int]) -> list[int]:
    """The processes that hold the networks of pods."""
    return [pid for pid in pids if _read(pid, "cmdline") == "sleep\0infinity\0"]


def _namespaces(pid: int) -> set[str]:
    try:
        return {str(link.readlink()) for link in Path(f"/proc/{pid}/ns").iterdir()}
    except OSError:  # it has ended; its parent has not looked yet
        return set()


def _opened(pids: list[int]) -> Iterator[int]:
    """A descriptor for each process that is still there: its number may be another's later."""
    for pid in pids:
        with suppress(ProcessLookupError):
            yield os.pidfd_open(pid)


def _ends(process: int) -> bool:
    """Whether a process ends soon: after SIGKILL the kernel needs a moment for all that were below the first one."""
    waiting = select.poll()
    waiting.register(process, select.POLLIN)
    ended = bool(waiting.poll(20_000))  # milliseconds
    os.close(process)
    return ended


def _links() -> set[str]:
    return {link.name for link in Path("/sys/class/net").iterdir()}


def _mounts() -> set[str]:
    return set(Path("/proc/self/mounts").read_text().splitlines())


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""
