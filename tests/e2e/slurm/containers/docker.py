"""docker with a daemon on each node, which the user may use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.e2e.docker.engine import cgroup_of, remove_cgroups
from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.containers import OWN, Image
from tests.e2e.slurm.machine import Machine
from tests.e2e.slurm.user import UID

_PROGRAMS = ("docker", "dockerd", "docker-init")
_IMAGE = "e2e:1"


def missing() -> str | None:
    absent = [program for program in _PROGRAMS if shutil.which(program) is None]
    return f"{', '.join(absent)} not installed: apt-get install docker.io" if absent else None


# In /run are the daemon's own sockets, and in /etc it leaves a key.  Containers get the node's own /etc/hosts.
_DAEMON = """
mount -t tmpfs tmpfs /run
mkdir /run/etc /run/work
cp /etc/hosts /run/etc
mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/etc,workdir=/run/work /etc
exec dockerd "$@"
"""
_IMPORT = 'tar --create --directory="$1" . | docker --host="$2" import "${@:4}" - "$3"'


@contextmanager
def ready(cluster: Cluster, root: Path, folder: Path) -> Iterator[Image]:
    node = folder / "node"
    node.mkdir()
    host = f"unix://{node}/docker.sock"
    cgroup = cgroup_of(os.getpid())
    (folder / "daemon.json").write_text("{}")  # in place of the machine's own settings
    options = [f"--host={host}", f"--group={UID}", f"--config-file={folder}/daemon.json", f"--data-root={node}/data"]
    options += ["--bridge=none", "--iptables=false", f"--cgroup-parent=/{cgroup}"]
    options += ["--exec-opt=native.cgroupdriver=cgroupfs"]
    for name, machine in cluster.machines.items():
        machine.run("mount", "-t", "tmpfs", "-o", "mode=755", "none", str(node))
        with (folder / f"{name}.log").open("w") as said:
            machine.start(["unshare", "--mount", "sh", "-euc", _DAEMON, "sh", *options], said)
    changes = [f"--change=ENV {name}={value!r}" for name, value in OWN.items()]
    for name, machine in cluster.machines.items():
        cluster.wait_for(f"docker on {name}", partial(_answers, machine, host))
        machine.run("bash", "-euo", "pipefail", "-c", _IMPORT, "bash", str(root), host, _IMAGE, *changes)
    yield Image(_IMAGE, {"DOCKER_HOST": host})
    for machine in cluster.machines.values():
        machine.run("pkill", "-x", "dockerd")
        machine.run("sh", "-c", "while pgrep -x dockerd; do sleep 0.1; done")
        machine.run("umount", str(node))
    remove_cgroups(cgroup)


def _answers(machine: Machine, host: str) -> bool:
    return "Server" in machine.run("docker", f"--host={host}", "version")
