"""A pod's network, host name, processes and files on this machine, kept apart by namespaces of the kernel.

A container is process 1 of its own process namespace: what it does not handle it does not get, and when it ends
everything that it started ends.  Its root folder holds this machine's programs, the Python of the tests and this
repository, and nothing else.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

REPOSITORY = Path(__file__).parents[3]
IPV6 = os.environ.get("E2E_K8S_NETWORK") == "ipv6"  # a cluster that has no IPv4
GATEWAY = "fd00:244::1" if IPV6 else "10.244.0.1"
_PREFIX_BITS = "64 nodad" if IPV6 else "16"
_BRIDGE = "pods"
_TOOLS = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
# The folders that every root folder shows; of the rest of this machine it shows nothing.
_MACHINE = ("/usr", "/dev", "/sys")
_PYTHON = dict.fromkeys([sys.base_prefix, sys.prefix, str(REPOSITORY)])


@dataclass(frozen=True)
class Container:
    """What one start of a container needs: `mounts` are files and folders of this machine by their place in it, and it
    begins in `folder`."""

    argv: Sequence[str]
    env: Mapping[str, str]
    mounts: Mapping[str, Path]
    folder: str
    user: int
    group: int
    read_only: bool


def open_network() -> None:
    """The network of the pods, in the network namespace of this process."""
    for command in (
        "ip link set lo up",
        f"ip link add {_BRIDGE} type bridge",
        f"ip addr add dev {_BRIDGE} {GATEWAY}/{_PREFIX_BITS}",
        f"ip link set {_BRIDGE} up",
    ):
        subprocess.run(command.split(), env=_TOOLS, check=True)


def address_of(number: int) -> str:
    """The address of a pod; the first one is the gateway's."""
    return f"fd00:244::{number:x}" if IPV6 else f"10.244.{number >> 8}.{number & 255}"


def in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


class Sandbox:
    """What the containers of a pod share, also those that come after one that failed: address and host name.

    number: of the pod, from 2 on; its address follows from it.
    files: what /etc/resolv.conf and other files of the root folder hold, by their path.
    """

    def __init__(self, number: int, hostname: str, folder: Path, files: Mapping[str, str]) -> None:
        self.address = address_of(number)
        self._link = f"veth{number}"
        self._root = folder / "root"
        self._root.mkdir(parents=True)
        self._files = files
        # Process 1 is the one that opened the network.
        script = f"""
            hostname {shlex.quote(hostname)}
            ip link add eth0 type veth peer name {self._link} netns 1
            nsenter --target 1 --net ip link set {self._link} master {_BRIDGE} up
            ip link set lo up
            ip addr add dev eth0 {self.address}/{_PREFIX_BITS}
            ip link set eth0 up
            ip route add default via {GATEWAY}
            echo ready
            exec sleep infinity
        """
        command = ["unshare", "--net", "--uts", "--ipc", "sh", "-euc", script]
        self._pause = subprocess.Popen(command, env=_TOOLS, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self._pause.stdout is not None
        if self._pause.stdout.readline() != "ready\n":
            raise RuntimeError(f"no network for {hostname}")

    def start(self, container: Container, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a container; a signal for it goes through `send`."""
        namespaces = [f"--{kind}=/proc/{self._pause.pid}/ns/{kind}" for kind in ("net", "uts", "ipc")]
        script = "\n".join([*self._root_folder(container), f"exec {shlex.join(self._command(container))}"])
        # The first child is process 1 of the new namespace; its exit code is kept, 137 where SIGKILL ended it.
        own = ["unshare", "--mount", "--pid", "sh", "-c", 'sh -euc "$0"; exit $?']
        command = ["nsenter", *namespaces, *own, script]
        # A shell drops the variables that it cannot name, so they are no part of its own environment.
        return subprocess.Popen(command, env=_TOOLS, stdout=log, stderr=log, start_new_session=True)

    def cut(self) -> None:
        """Let nothing through any more, and no peer hear that a connection has ended."""
        subprocess.run(["ip", "link", "set", self._link, "down"], env=_TOOLS, check=True)

    def close(self) -> None:
        self._pause.kill()
        self._pause.wait()

    def _root_folder(self, container: Container) -> list[str]:
        """The shell commands that make the root folder."""
        root = self._root
        commands = [f"mount -t tmpfs -o mode=755 tmpfs {root}", f"mkdir -p {root}/proc {root}/run {root}/var"]
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
            path = Path("/", name)
            if path.is_symlink():
                commands.append(f"ln -s {path.readlink()} {root}{path}")
            elif path.is_dir():
                commands.append(f"mkdir {root}{path}; mount --rbind {path} {root}{path}")
        commands += [_show(root, folder) for folder in _MACHINE]
        commands += [
            f"cp -a /etc {root}/etc",
            f"mkdir -m 1777 {root}/tmp {root}/var/tmp",
            f"mount -t proc proc {root}/proc",
            f"mount -t tmpfs -o size=64m tmpfs {root}/dev/shm",
        ]
        for name, text in self._files.items():
            at = f"{root}{name}"
            commands.append(
                f"mkdir -p $(dirname {at}); rm -f {at}; printf %s {shlex.quote(text)} > {at}; chmod 755 {at}"
            )
        for place, source in container.mounts.items():
            at, make = f"{root}{place}", "mkdir -p" if source.is_dir() else "touch"
            commands.append(f"mkdir -p $(dirname {at}); [ -e {at} ] || {make} {at}; mount --rbind {source} {at}")
        # Last, because they may lie below a folder that the pod mounts, as /tmp.
        commands += [_show(root, folder) for folder in _PYTHON]
        if container.read_only:
            commands.append(f"mount -o remount,ro,bind {root}")
        return commands

    def _command(self, container: Container) -> list[str]:
        ids = [f"--reuid={container.user}", f"--regid={container.group}", "--clear-groups"]
        powerless = ["--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]
        variables = [f"{name}={value}" for name, value in container.env.items()]
        run = ["/usr/bin/env", "--ignore-environment", f"--chdir={container.folder}", *variables, *container.argv]
        return ["chroot", str(self._root), "/usr/bin/setpriv", *ids, *powerless, *run]


def _show(root: Path, folder: str) -> str:
    return f"mkdir -p {root}{folder}; mount --rbind {folder} {root}{folder}"


def send(container: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to process 1 of a container."""
    children = Path(f"/proc/{container.pid}/task/{container.pid}/children")
    try:
        for child in children.read_text().split():
            os.kill(int(child), number)
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended
