"""Jobs on two nodes with two processes each: rendered for compose, and the same specs without containers."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from jobspec.artifact import render
from tests.cli import environment
from tests.e2e.docker.client import ROOT, Compose, Docker
from tests.e2e.slurm.machine import Machine, connect


class Project:
    """A job spec in `folder` and its compose file.

    Args:
        image: what the spec's `image` is.
    """

    def __init__(self, docker: Docker, image: str, folder: Path) -> None:
        self.docker, self.image, self.folder = docker, image, folder
        self.spec = folder / "job.yaml"
        self.name = f"e2e-{os.getpid()}-{folder.name.replace('_', '-')}"[:60]

    def write(self, **keys: Any) -> None:
        """The job spec."""
        common = {"name": "job", "nodes": 2, "procs_per_node": 2, "device": "cpu", "image": self.image}
        keys["compose"] = {"project": self.name, **keys.get("compose", {})}
        self.spec.write_text(yaml.safe_dump({**common, **keys}))

    def compose(self) -> Compose:
        """The compose file of the spec."""
        file = self.folder / "job.compose.yaml"
        file.write_text(render("compose", str(self.spec)))
        return Compose(self.docker, file, self.name)

    def records(self, event: str) -> list[dict[str, Any]]:
        """The records of one kind in metrics.jsonl of the volume `runs`."""
        text = self.docker.read(f"{self.name}_runs", self.image, "metrics.jsonl")
        return [record for record in map(json.loads, text.splitlines()) if record["event"] == event]


def run_on_two_machines(spec: Path, run_dir: Path) -> None:
    """Run a spec by the script for torchrun on two machines that have only a network in common, as containers have.

    They are namespaces, so the caller must be root.
    """
    script = render("torchrun", str(spec), [f"train.run_dir={run_dir}"])
    hosts = run_dir.parent / "hosts"
    hosts.write_text("127.0.0.1 localhost\n10.77.0.1 node0\n10.77.0.2 node1\n")
    with ExitStack() as machines:
        network = machines.enter_context(Machine("network", hosts))
        network.run("ip", "link", "add", "switch", "type", "bridge")
        network.run("ip", "link", "set", "switch", "up")
        commands = []
        for node in range(2):
            machine = machines.enter_context(Machine(f"node{node}", hosts))
            connect(network, "switch", machine, f"10.77.0.{node + 1}/24")
            commands.append(machine.inside(["bash", "-c", script], ROOT))
        _run(commands, "node0")


def _run(nodes: Sequence[Sequence[str]], head: str) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    started = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(NODE_RANK=str(node), MASTER_ADDR=head, PATH=path),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node, command in enumerate(nodes)
    ]
    for process in started:
        said, _ = process.communicate()
        assert process.returncode == 0, said
