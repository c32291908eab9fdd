"""The memory that a process gets, with cgroups of both versions, from files and from a real one."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.cli import ROOT
from train.world.cgroup import host_memory_bytes

_MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
_MIB = 2**20


def _with(folder: Path, own: str, limits: Mapping[str, object]) -> int:
    (folder / "own").write_text(own)
    for name, limit in limits.items():
        file = folder / "mounted" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{limit}\n")
    return host_memory_bytes(folder / "own", folder / "mounted")


def test_version_2_takes_the_smallest_limit_of_the_cgroup_and_its_parents(tmp_path: Path) -> None:
    limits = {"job/memory.max": 3 * _MIB, "job/step/memory.max": 5 * _MIB, "job/step/task/memory.max": "max"}
    assert _with(tmp_path, "0::/job/step/task\n", limits) == 3 * _MIB


def test_version_1_reads_the_hierarchy_of_memory(tmp_path: Path) -> None:
    own = "5:cpu,cpuacct:/other\n4:memory:/job/step\n1:name=systemd:/user\n0::/\n"
    limits = {"memory/job/step/memory.limit_in_bytes": 2 * _MIB, "memory/memory.limit_in_bytes": 9223372036854771712}
    assert _with(tmp_path, own, limits) == 2 * _MIB


@pytest.mark.parametrize(
    ("own", "file"),
    [("0::/host/only/docker-1\n", "memory.max"), ("7:memory:/docker/1\n", "memory/memory.limit_in_bytes")],
    ids=["v2", "v1"],
)
def test_in_a_container_whose_path_is_the_hosts_the_mount_is_its_own_cgroup(
    own: str, file: str, tmp_path: Path
) -> None:
    assert _with(tmp_path, own, {file: 7 * _MIB}) == 7 * _MIB


def test_without_any_limit_it_is_the_machines_memory(tmp_path: Path) -> None:
    assert _with(tmp_path, "0::/free\n", {"free/memory.max": "max"}) == _MACHINE
    assert host_memory_bytes(tmp_path / "no such file", tmp_path) == _MACHINE


@pytest.fixture
def real_cgroup() -> Iterator[tuple[Path, str]]:
    """A cgroup of this machine's kernel, and the name of the file that limits it."""
    version_1 = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists()
    parent = Path("/sys/fs/cgroup", "memory" if version_1 else "")
    folder = parent / f"multinode-torch-{os.getpid()}"
    file = "memory.limit_in_bytes" if version_1 else "memory.max"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here; root of a machine, not of a container, can: {error}")
    try:
        if not (folder / file).exists():
            pytest.skip(f"no {file}: this kernel limits memory by cgroup if booted with cgroup_enable=memory")
        yield folder, file
    finally:
        folder.rmdir()


def test_a_process_in_a_real_cgroup_sees_its_limit(real_cgroup: tuple[Path, str]) -> None:
    folder, file = real_cgroup
    (folder / file).write_text(str(256 * _MIB))
    enter = f"import os; open({str(folder / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
    look = "from train.world.cgroup import host_memory_bytes; print(host_memory_bytes())"
    command = [sys.executable, "-c", enter + look]
    assert int(subprocess.check_output(command, cwd=ROOT)) == 256 * _MIB
