"""The torchrun script with the real torchrun: every process sees what the target's `settings` foretell."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from jobspec import targets
from jobspec.artifact import load, render
from jobspec.plan import Plan

SCRIPT = """
import json, os, pathlib
pathlib.Path(os.environ["OUT"], os.environ["RANK"]).write_text(json.dumps(dict(os.environ)))
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start(folder: Path, nodes: str) -> tuple[Plan, list[dict[str, str]]]:
    """Run a job on "nodes" that are all this machine; the plan and the environment of each process by rank."""
    (folder / "mine.py").write_text(SCRIPT)
    spec = folder / "job.yaml"
    spec.write_text(
        f"name: job\nnodes: {nodes}\nprocs_per_node: 2\ndevice: cpu\ncommand: [mine.py]\n"
        f"env: {{OUT: {json.dumps(str(folder))}}}\nrendezvous: {{port: {free_port()}}}\n"
    )
    plan = load(targets.load("torchrun"), str(spec))
    bin_folder = str(Path(sys.executable).parent)
    env = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "MASTER_ADDR": "127.0.0.1"}
    script = folder / "job.sh"
    script.write_text(render("torchrun", str(spec)))
    agents = [
        subprocess.Popen(["bash", script], cwd=folder, env={**env, "NODE_RANK": str(node)})
        for node in range(plan.job.nodes.max)
    ]
    try:
        assert [agent.wait(timeout=90) for agent in agents] == [0] * len(agents)
    finally:
        for agent in agents:
            agent.kill()
    return plan, [json.loads((folder / str(rank)).read_text()) for rank in range(plan.world_size)]


@pytest.mark.parametrize("nodes", ["1", "2", "{min: 1, max: 2}"])
def test_every_process_sees_what_settings_say(tmp_path: Path, nodes: str) -> None:
    plan, environments = start(tmp_path, nodes)
    target = targets.load("torchrun")
    for rank in plan.ranks():
        told = {setting.name: setting.value for setting in target.settings(plan, rank)}
        seen = environments[rank.rank]
        assert set(told) <= set(seen)
        known = {name: value for name, value in told.items() if not value.startswith("<")}
        assert known == {name: seen[name] for name in known}
        assert seen["MASTER_ADDR"] == "127.0.0.1"
