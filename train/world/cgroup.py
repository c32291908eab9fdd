"""How much memory the cgroup (a container, a Slurm job) allows this process."""

import os
from contextlib import suppress
from pathlib import Path

_OWN, _MOUNTS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def host_memory_bytes(own_cgroups: Path = _OWN, hierarchies: Path = _MOUNTS) -> int:
    """Return the smallest of the machine's memory and the limits of this process's cgroup and its parents.

    own_cgroups: a file of lines `number:controllers:path`; a line without controllers is of version 2.
    hierarchies: where version 2, or a folder for each controller of version 1, is mounted.  Inside a container the path
    may be the host's, which is not mounted there; the mount itself, which is read last, is then the container's cgroup.
    Source: cgroups(7); the kernel's admin-guide/cgroup-v2 (memory.max) and cgroup-v1/memory (memory.limit_in_bytes).
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for line in own_cgroups.read_text().splitlines() if own_cgroups.exists() else []:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, file = (hierarchies / "memory", "memory.limit_in_bytes") if controllers else (hierarchies, "memory.max")
        cgroup = Path(path.lstrip("/"))
        for limit in [mount / folder / file for folder in (cgroup, *cgroup.parents)]:
            with suppress(OSError):  # not visible here, or the root of version 2, which has no limit
                text = limit.read_text().strip()
                limits += [int(text)] if text != "max" else []
    return min(limits)
