"""docker with a daemon on each node, which the user may use."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.e2e.docker.engine import OWN_RUN_AND_ETC, cgroup_of, remove_cgroups
from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.containers import OWN_IN_OCI, Image, absent, tmpfs_on_each
from tests.e2e.slurm.machine import Machine
from tests.e2e.slurm.user import UID

_IMAGE = "e2e:1"
# Containers get the node's /etc/hosts, which a mount of its own replaces.
_DAEMON = f"""
hosts=$(cat /etc/hosts)
{OWN_RUN_AND_ETC}
echo "$hosts" > /etc/hosts
exec dockerd "$@"
"""
_IMPORT = 'tar --create --directory="$1" . | docker --host="$2" import "${@:4}" - "$3"'


def missing() -> str | None:
    return absent(["docker", "dockerd", "docker-init"], "apt-get install docker.io")


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
    machines = cluster.machines
    with tmpfs_on_each(machines.values(), node, "mode=755"):
        try:
            for name, machine in machines.items():
                with (folder / f"{name}.log").open("w") as said:
                    machine.start(["unshare", "--mount", "sh", "-euc", _DAEMON, "sh", *options], said)
            for name, machine in machines.items():
                cluster.wait_for(f"docker on {name}", partial(_answers, machine, host))
                command = ["bash", "-euo", "pipefail", "-c", _IMPORT, "bash", str(root), host, _IMAGE]
                machine.run(*command, *OWN_IN_OCI)
            yield Image(_IMAGE, {"DOCKER_HOST": host})
        finally:
            for machine in machines.values():
                machine.run("sh", "-c", "while pkill -x dockerd; do sleep 0.1; done")
            remove_cgroups(cgroup)


def _answers(machine: Machine, host: str) -> bool:
    return "Server" in machine.run("docker", f"--host={host}", "version")
