"""A machine within this one: its own host name, network and processes, and nothing of it outlives its first process.

It is held by Linux namespaces without names.  When the first process in one ends, the kernel ends all others in it
and takes down its network cards and mounts; and the first process ends with whoever started it, however that ended.
"""

from __future__ import annotations

import os
import shlex
import signal
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

HERE = Path("/")  # the root folder of this machine's own system

# Ends when the pipe to its starter closes; as process 1 bash also clears away the processes that lost their parent.
_FIRST_PROCESS = "set -e; hostname {name}; {mounts} ip link set lo up; echo ready; read -r _"
# A copy of /etc as a whole: what is mounted on one file is gone once a package is installed that replaces the file.
_OWN_ETC = "mount -t tmpfs -o mode=755 none /mnt; cp -a {etc}/. /mnt; {files} mount --move /mnt /etc;"
# All of the release but what this machine has in /usr/local.
_USR = "exec {{local}}</usr/local; mount --bind {usr} /usr; {bind}/$local /usr/local; exec {{local}}<&-;"
_BIND_OPEN = "mount --no-canonicalize --bind /proc/$$/fd"


class Machine:
    """Starts on construction, ends with `close`.

    Args:
        name: its host name.
        hosts: the file that is its /etc/hosts.
        files: further files of /etc in place of those of this machine.
        opened: folders that every user reaches there, also where they lie within a closed one, such as /root.
        release: the root folder of the Debian release that it runs; that of this machine unless given.
    Raises RuntimeError if the kernel or the user's rights do not allow it.
    """

    def __init__(
        self,
        name: str,
        hosts: Path,
        files: Mapping[str, Path] | None = None,
        opened: Sequence[Path] = (),
        release: Path = HERE,
    ) -> None:
        self.name = name
        self._started: list[subprocess.Popen[str]] = []
        replaced = {"hosts": hosts, **(files or {})}
        copied = " ".join(f"cp {shlex.quote(str(file))} /mnt/{path};" for path, file in replaced.items())
        mounts = [_OWN_ETC.format(etc=shlex.quote(str(release / "etc")), files=copied)]
        if release != HERE:
            mounts.append(_USR.format(usr=shlex.quote(str(release / "usr")), bind=_BIND_OPEN))
        first = _FIRST_PROCESS.format(name=shlex.quote(name), mounts=" ".join([*mounts, *_reopened(opened)]))
        unshare = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        # A session of its own: Ctrl-C on the terminal is for the tests, which then close the machine.
        self._holder = subprocess.Popen(
            [*unshare, "bash", "-c", first],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._holder.stdout is not None and self._holder.stderr is not None
        if self._holder.stdout.readline() != "ready\n":
            raise RuntimeError(f"no machine {name}: {self._holder.stderr.read().strip()}")
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
        self.pid = int(children[0])
        """Its first process, as seen from outside."""

    def inside(self, command: Sequence[str], folder: Path = Path("/")) -> list[str]:
        """The command that runs `command` in this machine, in `folder`."""
        return ["nsenter", f"--target={self.pid}", "--all", "env", f"--chdir={folder}", *command]

    def run(self, *command: str) -> str:
        """Run a command there to its end; what it wrote.  RuntimeError if it fails."""
        done = subprocess.run(self.inside(command), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{self.name}: {shlex.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self, command: Sequence[str], output: IO[str]) -> None:
        """Start a program that stays, such as a daemon."""
        program = subprocess.Popen(
            self.inside(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._started.append(program)

    def take_crashed(self) -> list[str]:
        """Return the names of the started programs that have crashed since the last call."""
        crashed = [program for program in self._started if program.poll() in (-signal.SIGABRT, -signal.SIGSEGV)]
        for program in crashed:
            self._started.remove(program)
        length = len(self.inside([]))
        return [str(program.args[length]) for program in crashed if isinstance(program.args, list)]

    def close(self) -> None:
        """End it at once, as a power cut would.  Returns when the kernel has ended the last of its processes."""
        if self._holder.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        for process in (self._holder, *self._started):
            process.communicate()

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def connect(network: Machine, bridge: str, machine: Machine, address: str) -> None:
    """Plug `machine` into a bridge of the machine `network`; `address` is with the length of its prefix."""
    cable = f"to-{machine.name}"
    ends = ["name", cable, "netns", str(network.pid), "type", "veth", "peer", "name", "eth0", "netns", str(machine.pid)]
    subprocess.run(["ip", "link", "add", *ends], check=True, capture_output=True)
    network.run("ip", "link", "set", cable, "master", bridge, "up")
    machine.run("ip", "address", "add", address, "dev", "eth0")
    machine.run("ip", "link", "set", "eth0", "up")


def _reopened(folders: Sequence[Path]) -> Iterator[str]:
    """Shell commands after which every user reaches the folders, also those within a closed one.

    An empty folder covers the closed one, and there the needed ones are mounted from descriptors that were opened
    before.
    """
    needed: dict[Path, list[Path]] = {}
    for folder in sorted({folder.resolve() for folder in folders}):
        closed = [parent for parent in reversed(folder.parents) if not parent.stat().st_mode & stat.S_IXOTH]
        if closed and not set(folder.parents) & {*needed.get(closed[0], [])}:
            needed.setdefault(closed[0], []).append(folder)
    for closed_one, inside in needed.items():
        words = [shlex.quote(str(folder)) for folder in inside]
        yield from (f"exec {{folder{number}}}<{word};" for number, word in enumerate(words))
        yield f"mount -t tmpfs -o mode=755 none {shlex.quote(str(closed_one))};"
        for number, word in enumerate(words):
            yield f"mkdir -p {word}; {_BIND_OPEN}/$folder{number} {word};"
            yield f"exec {{folder{number}}}<&-;"
