"""What a run is on the machine it runs on, and what of it is to be seen outside of its namespaces.

Only what bears the run's own name or number is looked at: other engines may come and go meanwhile.
"""

import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

# Where an engine keeps things if nobody tells it otherwise.
_CONTAINERD = ("/run/containerd", "/var/lib/containerd")
_FOLDERS = ("/etc/docker", "/run/docker", "/run/docker.sock", "/var/lib/docker", *_CONTAINERD)
_NAMESPACES = ("net", "mnt", "pid")


def descendants(ancestor: int) -> dict[int, str]:
    """Number and name of every process below one, those of its containers among them."""
    parents, names = {}, {}
    for process in _processes():
        with suppress(OSError):  # it may end in the meantime
            name, _, rest = (process / "stat").read_text().partition("(")[2].rpartition(")")
            parents[int(process.name)], names[int(process.name)] = int(rest.split()[1]), name
    found = {ancestor}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: names[pid] for pid in found - {ancestor}}


def namespaces(pids: Iterable[int]) -> set[str]:
    """The namespaces that these processes have and this one has not."""
    return {name for pid in pids for name in _namespaces(Path(f"/proc/{pid}"))} - _namespaces(Path("/proc/self"))


def processes_in(those: set[str]) -> list[str]:
    """The command lines of all processes in one of these namespaces."""
    found = []
    for process in _processes():
        with suppress(OSError):
            if _namespaces(process) & those:
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def seen_outside(bridge: str, folder: Path) -> list[str]:
    """What this machine shows of an engine with that bridge and its files in `folder`, and of engines' own folders."""
    filters = subprocess.run(["iptables-save"], capture_output=True, text=True).stdout
    mounts = Path("/proc/self/mountinfo").read_text()
    lines = [line for line in [*filters.splitlines(), *mounts.splitlines()] if bridge in line or str(folder) in line]
    folders = [Path(f"/sys/class/net/{bridge}"), *map(Path, _FOLDERS)]
    return lines + [str(path) for folder in folders for path in [folder, *folder.glob("*")] if os.path.lexists(path)]


def _processes() -> Iterable[Path]:
    return Path("/proc").glob("[0-9]*")


def _namespaces(process: Path) -> set[str]:
    return {str((process / "ns" / kind).readlink()) for kind in _NAMESPACES}
