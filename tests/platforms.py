"""One job on any target, run on this machine as its platform would run it: real torchrun, a real all-reduce.

What each platform adds is replayed by tests/slurm.py, tests/clusters.py and tests/compose.py; here its nodes become
processes.  Node n is 127.0.0.(n+1), which also stands for the names of pods and services: no DNS knows them here.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobspec.artifact import render
from tests import clusters, compose
from tests.cli import environment, free_port
from tests.slurm import Cluster, directives

NODES = ("127.0.0.1", "127.0.0.2")
SECRETS = {"TOKEN": "s3cret $(NOTE)"}


# Each process adds its rank's power of two: the sum shows that every rank took part exactly once.
SCRIPT = """
import json, os, pathlib, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor(2 ** dist.get_rank())
dist.all_reduce(total)
seen = {"total": total.item(), "world_size": dist.get_world_size(), "env": dict(os.environ)}
seen["arguments"] = sys.argv[1:]
pathlib.Path("seen", str(dist.get_rank())).write_text(json.dumps(seen))
dist.destroy_process_group()
"""
_NODE = "NUMBER_OF_THE_NODE"  # by the platform's count; set from outside, so that a process can tell where it is

# The GPUs of node n, by artifact and n.
_GPUS: Mapping[str, Callable[[str, int], int | None]] = {
    "slurm": lambda artifact, node: int(directives(artifact)["gpus-per-node"]),
    "torchrun": lambda artifact, node: None,  # all of the machine
    "compose": lambda artifact, node: _reserved(artifact, node),
    **dict.fromkeys(clusters.KINDS, lambda artifact, node: _limit(artifact)),
}


@dataclass(frozen=True)
class Seen:
    """What a process found: its node, the GPUs there (None: all of the machine), its arguments and environment."""

    node: int
    gpus: int | None
    total: int
    world_size: int
    arguments: list[str]
    env: Mapping[str, str]


def run(target: str, spec: Path, folder: Path, programs: Path, settings: Sequence[str] = ()) -> dict[int, Seen]:
    """Run a job whose command is [mine.py]; what each process found, by rank.

    Args:
        folder: an empty one for the run.
        programs: the folder with torchrun and python3.
    """
    artifact = render(target, str(spec), settings)
    (folder / "mine.py").write_text(SCRIPT)
    (folder / "seen").mkdir()
    if target == "slurm":
        _run_on_slurm(artifact, folder, programs)
    else:
        starts = {"torchrun": _by_hand, "compose": _services}.get(target) or _pods(target)
        _run_nodes(list(starts(artifact)), folder, programs)
    found = {}
    for file in (folder / "seen").iterdir():
        seen = json.loads(file.read_text())
        node = int(seen["env"].pop(_NODE) if target != "slurm" else seen["env"]["SLURM_NODEID"])
        found[int(file.name)] = Seen(node, _GPUS[target](artifact, node), **seen)
    return found


def resolved(value: str, names: Sequence[str]) -> str:
    """A value with the names of nodes looked up; `names` are by number of the node."""
    for node in sorted(range(len(names)), key=lambda node: len(names[node]), reverse=True):
        value = value.replace(names[node], NODES[node])
    return value


_Start = tuple[list[str], Mapping[str, str]]  # of one node: words and environment


def _run_on_slurm(artifact: str, folder: Path, programs: Path) -> None:
    asked = directives(artifact)["nodes"]
    nodes = NODES[: int(asked.rpartition("-")[2])]
    # The job's number decides its port, which no other test that runs now may have.
    cluster = Cluster(folder, nodes, 70000 + free_port() % 10000)
    cluster.install("nvidia-smi", "print('GPU 0: A\\nGPU 1: B')")
    path = f"{folder / 'bin'}:{programs}:{os.environ['PATH']}"
    status, out = cluster.run(artifact, PATH=path, **SECRETS)
    assert status == 0, out


def _by_hand(artifact: str) -> Iterator[_Start]:
    """A person starts the script on each node."""
    nodes = NODES if "NODE_RANK" in artifact else NODES[:1]
    for node in range(len(nodes)):
        own = {"NODE_RANK": str(node), "MASTER_ADDR": NODES[0]} if len(nodes) > 1 else {}
        yield ["bash", "-c", artifact], environment(**own, **SECRETS)


def _services(artifact: str) -> Iterator[_Start]:
    services = compose.read(artifact, SECRETS)["services"]
    for service in services.values():
        words = [resolved(word, list(services)) for word in [*service["entrypoint"], *service["command"]]]
        yield words, {name: resolved(value, list(services)) for name, value in service["environment"].items()}


def _pods(target: str) -> Callable[[str], Iterator[_Start]]:
    def starts(artifact: str) -> Iterator[_Start]:
        pods = clusters.processes(target, clusters.documents(artifact), SECRETS, NODES)
        names = [pod.name for pod in pods]
        for pod in pods:
            yield pod.argv, {name: resolved(value, names) for name, value in pod.env.items()}

    return starts


def _run_nodes(starts: Sequence[_Start], folder: Path, programs: Path) -> None:
    """Start every node here, wait for all, and leave none behind."""
    agents = []
    try:
        for node, (words, env) in enumerate(starts):
            machine = {_NODE: str(node), "PATH": f"{programs}:{os.environ['PATH']}"}
            agents.append(subprocess.Popen(words, cwd=folder, env={"HOME": str(folder), **env, **machine}))
        assert [agent.wait() for agent in agents] == [0] * len(agents)
    finally:
        for agent in agents:
            agent.terminate()  # a torchrun that is killed leaves its processes behind
        for agent in agents:
            agent.wait()


def _limit(artifact: str) -> int:
    template = clusters.pod_templates(clusters.documents(artifact))[0]
    return int(template["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])


def _reserved(artifact: str, node: int) -> int:
    service = list(compose.read(artifact, SECRETS)["services"].values())[node]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    return len(device["device_ids"])
