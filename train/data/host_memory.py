"""The memory that this process may use: the machine's, or the limit of its cgroup (a container, a Slurm job)."""

from __future__ import annotations

import os
from pathlib import Path


def host_memory_bytes(own_cgroups: Path = Path("/proc/self/cgroup"), hierarchies: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the smallest of the machine's memory and the limits of this process's cgroup and its parents.

    Args:
        own_cgroups: a file of lines `number:controllers:path`; a line without controllers is of version 2.
        hierarchies: where version 2, or version 1's folder `memory`, is mounted.
    Source: cgroups(7); the kernel's admin-guide/cgroup-v2 (memory.max) and cgroup-v1/memory (memory.limit_in_bytes).
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    try:
        lines = own_cgroups.read_text().splitlines()
    except OSError:
        lines = []  # not Linux
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            limits += _limits(hierarchies, path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits(hierarchies / "memory", path, "memory.limit_in_bytes")
    return min(limits)


def _limits(mount: Path, path: str, file: str) -> list[int]:
    """Return the limits of a cgroup and its parents.

    Inside a container the path may be the host's, which is not mounted there.  The container's cgroup is then the mount
    itself, which is read last.
    """
    found = []
    cgroup = Path(path.lstrip("/"))
    for folder in (cgroup, *cgroup.parents):
        try:
            found.append(int((mount / folder / file).read_text()))
        except (OSError, ValueError):
            continue  # not visible here, the root of version 2 (which has no limit), or the word max
    return found
