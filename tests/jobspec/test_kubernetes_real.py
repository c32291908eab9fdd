"""Each kind's pods as local processes: the operator's variables, real torchrun, a real all-reduce.

Every process sees what the target's `settings` foretell.  Names of pods become this machine's address, because no
DNS knows them here; nothing else is changed.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from jobspec import targets
from jobspec.artifact import load, render
from tests.clusters import KINDS, Process, documents, processes

SCRIPT = """
import json, os, pathlib, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
seen = {"env": dict(os.environ), "rank": dist.get_rank(), "world": dist.get_world_size(), "total": total.item()}
pathlib.Path(os.environ["OUT"], str(dist.get_rank())).write_text(json.dumps(seen))
dist.destroy_process_group()
"""
HERE = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HERE, 0))
        return int(listener.getsockname()[1])


def run(folder: Path, pods: Sequence[Process], names: Sequence[str]) -> None:
    """Start every pod's container here, wait for all, and leave none behind."""
    machine = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(folder)}
    agents = []
    try:
        for pod in pods:
            env = {name: resolved(value, names) for name, value in pod.env.items()}
            agents.append(subprocess.Popen(pod.argv, cwd=folder, env={**machine, **env}))
        assert [agent.wait(timeout=250) for agent in agents] == [0] * len(agents)
    finally:
        for agent in agents:
            agent.terminate()  # a torchrun that is killed leaves its processes behind
        for agent in agents:
            agent.wait(timeout=30)


def resolved(value: str, names: Sequence[str]) -> str:
    """A value with the name of a pod looked up."""
    for name in sorted(names, key=len, reverse=True):
        value = value.replace(name, HERE)
    return value


@pytest.mark.timeout(300)  # two agents and four processes import torch, which takes long on a busy machine
@pytest.mark.parametrize(
    ("target", "nodes"), [*((target, "2") for target in KINDS), ("pytorchjob", "{min: 1, max: 2}"), ("jobset", "1")]
)
def test_every_process_in_every_pod_sees_what_settings_say(target: str, nodes: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    spec = tmp_path / "job.yaml"
    spec.write_text(
        f"name: my-job\nnodes: {nodes}\nprocs_per_node: 2\ndevice: cpu\nimage: train:1\ncommand: [mine.py]\n"
        f"env: {{OUT: {json.dumps(str(tmp_path))}, GLOO_SOCKET_IFNAME: lo, NOTE: '$(OUT) $HOME $$ $é'}}\n"
        f"secrets: [TOKEN]\nrendezvous: {{port: {free_port()}}}\n"
    )
    module = targets.load(target)
    plan = load(module, str(spec))
    pods = processes(target, documents(render(target, str(spec))), {"TOKEN": "s3cret $(OUT)"}, pod_ip=HERE)
    names = [pod.name for pod in pods]
    run(tmp_path, pods, names)

    ranks = list(plan.ranks())
    assert sorted(path.name for path in tmp_path.glob("[0-9]*")) == [str(rank.rank) for rank in ranks]
    for rank in ranks:
        seen = json.loads((tmp_path / str(rank.rank)).read_text())
        assert (seen["rank"], seen["world"], seen["total"]) == (rank.rank, len(ranks), sum(range(len(ranks) + 1)))
        told = {setting.name: resolved(setting.value, names) for setting in module.settings(plan, rank)}
        known = {name: value for name, value in told.items() if not value.startswith("<")}
        assert known == {name: seen["env"].get(name) for name in known}
        assert set(told) <= set(seen["env"])
        assert seen["env"]["NOTE"] == "$(OUT) $HOME $$ $é"
        assert seen["env"]["TOKEN"] == "s3cret $(OUT)"
        assert (int(seen["env"]["GROUP_RANK"]), int(seen["env"]["LOCAL_RANK"])) == (rank.node, rank.local_rank)
        foreign = {name for name in seen["env"] if name.startswith("PET_")} - set(told)
        assert not foreign


@pytest.mark.parametrize("target", KINDS)
def test_peers_look_for_node_0_under_the_name_of_its_pod(target: str, tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text("name: my-job\nnodes: 3\nprocs_per_node: 2\nimage: train:1\ncommand: [mine.py]\n")
    pods = processes(target, documents(render(target, str(spec))), {}, pod_ip=HERE)
    assert {pod.env["PET_MASTER_ADDR"] for pod in pods} == {pods[0].name}
    assert [pod.env["PET_NODE_RANK"] for pod in pods] == ["0", "1", "2"]
    plan, module = load(targets.load(target), str(spec)), targets.load(target)
    assert [targets.node_name(module, plan, node) for node in range(3)] == [pod.name for pod in pods]


def test_only_worker_0_of_an_elastic_pytorchjob_hosts_the_rendezvous(tmp_path: Path) -> None:
    (tmp_path / "torchrun").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/argv."$PET_REPLICA_INDEX"\n')
    (tmp_path / "torchrun").chmod(0o755)
    spec = tmp_path / "job.yaml"
    spec.write_text(
        "name: my-job\nnodes: {min: 1, max: 3}\nprocs_per_node: 2\nimage: train:1\nmax_restarts: 5\n"
        "command: [mine.py, 'a  b', '$(HOME) \"']\n"
    )
    for pod in processes("pytorchjob", documents(render("pytorchjob", str(spec))), {}, pod_ip=HERE):
        subprocess.run(pod.argv, env={"PATH": f"{tmp_path}:{os.environ['PATH']}", **pod.env}, check=True)
        assert pod.env["PET_RDZV_ENDPOINT"].startswith("my-job-worker-0:")
        assert (pod.env["PET_NNODES"], pod.env["PET_LOCAL_ADDR"]) == ("1:3", HERE)
    for index in range(3):
        assert (tmp_path / f"argv.{index}").read_text().splitlines() == [
            f"--rdzv-conf=is_host={int(index == 0)}",
            "--nproc-per-node=2",
            "--rdzv-id=my-job",
            "--max-restarts=5",
            "--",
            "mine.py",
            "a  b",
            '$(HOME) "',
        ]
