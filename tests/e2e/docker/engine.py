"""A Docker engine for the tests: the one that `docker` reaches, or one of their own.

An engine of our own lives in namespaces (processes, mounts, network) below one process.  When that process ends, for
whatever reason, the kernel takes all of it along: daemons, containers, mounts, bridges and packet filters, which
were never to be seen outside.  Its way to the outside is slirp4netns, a process of ours without rights.
"""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Program, and Debian's package that has it.
_NEEDS = {
    "docker": "docker.io",
    "dockerd": "docker.io",
    "docker-init": "docker.io",
    "iptables": "iptables",
    "slirp4netns": "slirp4netns",
    "ip": "iproute2",
    "unshare": "util-linux",
    "setpriv": "util-linux",
}
_CGROUPS = Path("/sys/fs/cgroup")
# The kernel ends these processes when we end, also by SIGKILL.
WITH_US = ["setpriv", "--pdeathsig=KILL", "--"]

OWN_RUN_AND_ETC = """
mount -t tmpfs tmpfs /run
mkdir /run/etc /run/work
mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/etc,workdir=/run/work /etc
"""
"""In mounts of its own an engine has its sockets in /run, whose names must be short, and leaves a key in /etc."""

# As the first process of its namespaces.  Its name server is slirp4netns.
_SCRIPT = f"""
ip link set lo up
{OWN_RUN_AND_ETC}
rm -f /etc/resolv.conf
echo nameserver 10.0.2.3 > /etc/resolv.conf
exec docker-init -- dockerd "$@"
"""


def running() -> bool:
    """Whether `docker` reaches an engine already."""
    return bool(shutil.which("docker")) and not subprocess.run(["docker", "info"], capture_output=True).returncode


def missing() -> str:
    """Why no engine of our own can be started, or nothing."""
    if os.geteuid() != 0:
        return "`docker info` reaches no engine, and only root can start one"
    absent = sorted({package for program, package in _NEEDS.items() if not shutil.which(program)})
    return f"`docker info` reaches no engine; to start one: apt-get install {' '.join(absent)}" if absent else ""


def cgroup_of(pid: int) -> str:
    """The name of the control group below which the engine of a process keeps its containers."""
    return f"e2e-docker-{pid}"


@contextmanager
def engine(folder: Path) -> Iterator[dict[str, str]]:
    """Start an engine; the environment in which `docker` reaches it.  `folder` holds its files and is gone afterwards.

    Raises RuntimeError with what it said if it does not start.
    """
    cgroup = cgroup_of(os.getpid())
    folder.mkdir(parents=True)
    try:
        with _process(folder, cgroup):
            yield {**os.environ, "DOCKER_HOST": f"unix://{folder}/docker.sock"}
    finally:
        remove_cgroups(cgroup)
        shutil.rmtree(folder)


@contextmanager
def _process(folder: Path, cgroup: str) -> Iterator[None]:
    (folder / "daemon.json").write_text("{}")  # in place of the machine's own settings
    # In place of NVIDIA's toolkit: the engine gives a container the numbers of its GPUs, and there is nothing to add.
    (folder / "nvidia-container-runtime-hook").symlink_to("/bin/true")
    options = [
        f"--config-file={folder}/daemon.json",
        f"--data-root={folder}/data",
        f"--host=unix://{folder}/docker.sock",
        f"--cgroup-parent=/{cgroup}",
        "--exec-opt=native.cgroupdriver=cgroupfs",
    ]
    namespaces = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    log = folder / "dockerd.log"
    with _listening(folder / "ready.sock") as ready, log.open("wb") as said:
        process = subprocess.Popen(
            [*WITH_US, *namespaces, "sh", "-eu", "-c", _SCRIPT, "sh", *options],
            env={**os.environ, "NOTIFY_SOCKET": str(folder / "ready.sock"), "PATH": f"{os.environ['PATH']}:{folder}"},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,  # Ctrl-C is for pytest, which then ends us
        )
        try:
            if not _says_ready(ready, process):
                raise RuntimeError(f"dockerd did not start:\n{log.read_text()[-3000:]}")
            with _network(process.pid):
                yield
        finally:
            _end(process)


@contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        yield listener


def _says_ready(ready: socket.socket, process: subprocess.Popen[bytes]) -> bool:
    """Wait for the message that dockerd sends to systemd when its API answers."""
    ready.settimeout(1.0)
    while process.poll() is None:
        with suppress(TimeoutError):
            if b"READY=1" in ready.recv(4096):
                return True
    return False


@contextmanager
def _network(pid: int) -> Iterator[None]:
    """Connect the network namespace of a process to the outside, for apt-get and pip in a build."""
    reader, writer = os.pipe()
    command = ["slirp4netns", "--configure", "--mtu=65520", "--disable-host-loopback", f"--ready-fd={writer}"]
    slirp = subprocess.Popen(
        [*WITH_US, *command, str(pid), "tap0"],
        pass_fds=[writer],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as told:
            if not told.read(1):
                _, said = slirp.communicate()
                raise RuntimeError(f"slirp4netns did not start:\n{said.decode()}")
        yield
    finally:
        slirp.kill()
        slirp.communicate()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the first process of the namespaces; unshare ends when the kernel has ended all others."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    for child in children.read_text().split() if process.poll() is None else []:
        os.kill(int(child), signal.SIGKILL)
    process.wait()


def remove_cgroups(name: str) -> None:
    """The groups of killed containers, one or one for each controller, outlive them; only folders can be removed."""
    for group in [_CGROUPS / name, *_CGROUPS.glob(f"*/{name}")]:
        for folder, _, _ in os.walk(group, topdown=False):
            Path(folder).rmdir()
