"""What the cgroup (a container, a Slurm job) allows this process: its memory, and the CPU time that it withholds."""

import os
from collections.abc import Iterator
from pathlib import Path

_OWN, _MOUNTS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def host_memory_bytes(own_cgroups: Path = _OWN, hierarchies: Path = _MOUNTS) -> int:
    """Return the smallest of the machine's memory and the limits of this process's cgroup and its parents.

    own_cgroups: a file of lines `number:controllers:path`; a line without controllers is of version 2.
    hierarchies: where version 2, or a folder for each controller of version 1, is mounted.
    Source: cgroups(7); the kernel's admin-guide/cgroup-v2 (memory.max) and cgroup-v1/memory (memory.limit_in_bytes).
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    files = ("memory.max", "memory.limit_in_bytes")
    # The root of version 2 has no limit; others may have the word max.
    limits += [int(text) for text in _contents("memory", files, own_cgroups, hierarchies) if text.strip().isdecimal()]
    return min(limits)


def throttled_seconds(own_cgroups: Path = _OWN, hierarchies: Path = _MOUNTS) -> float:
    """Return for how long CPU limits of this process's cgroup and its parents have stopped it until now.

    Arguments as above.  Source: the kernel's admin-guide/cgroup-v2 (cpu.stat) and scheduler/sched-bwc.
    """
    seconds = [0.0]
    for text in _contents("cpu", ("cpu.stat", "cpu.stat"), own_cgroups, hierarchies):
        found = dict(line.split() for line in text.splitlines())
        seconds.append(int(found.get("throttled_usec", 0)) / 1e6 + int(found.get("throttled_time", 0)) / 1e9)
    return max(seconds)


def _contents(controller: str, files: tuple[str, str], own_cgroups: Path, hierarchies: Path) -> Iterator[str]:
    """Yield the texts of a file of the cgroup and its parents; its name differs between version 2 and version 1.

    Inside a container the path may be the host's, which is not mounted there.  The container's cgroup is then the mount
    itself, which is read last.
    """
    try:
        lines = own_cgroups.read_text().splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount, file = hierarchies, files[0]
        elif controller in controllers.split(","):
            mount, file = hierarchies / controller, files[1]
        else:
            continue
        cgroup = Path(path.lstrip("/"))
        for folder in (cgroup, *cgroup.parents):
            try:
                yield (mount / folder / file).read_text()
            except OSError:
                continue  # not visible here
