"""The services of a compose file as local processes: real torchrun, a real all-reduce, and what `settings` foretell.

Names of services become this machine's address, because no DNS of compose knows them here; nothing else is changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobspec import targets
from jobspec.artifact import load, render
from tests.compose import read

SCRIPT = """
import json, os, pathlib
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor(2 ** dist.get_rank())
dist.all_reduce(total)
seen = {"env": dict(os.environ), "total": total.item()}
pathlib.Path(os.environ["OUT"], os.environ["RANK"]).write_text(json.dumps(seen))
dist.destroy_process_group()
"""


@pytest.mark.timeout(600)  # torch is imported by up to six processes, also on a machine with other work
@pytest.mark.parametrize("nodes", ["1", "2", "{min: 1, max: 2}"])
def test_every_process_sees_what_settings_say_and_reaches_the_others(tmp_path: Path, nodes: str) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    spec = tmp_path / "job.yaml"
    spec.write_text(
        f"name: unknown-here\nnodes: {nodes}\nprocs_per_node: 2\ndevice: cpu\nimage: any\ncommand: [mine.py]\n"
        f"env: {{OUT: {json.dumps(str(tmp_path))}}}\n"
    )
    target = targets.load("compose")
    plan = load(target, str(spec))
    services = read(render("compose", str(spec)), {})["services"]
    names = list(services)

    machine = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    agents = []
    try:
        for service in services.values():
            argv = [here(word, names) for word in [*service["entrypoint"], *service["command"]]]
            env = {name: here(value, names) for name, value in service["environment"].items()}
            agents.append(subprocess.Popen(argv, cwd=tmp_path, env={**machine, **env}))
        assert [agent.wait(timeout=500) for agent in agents] == [0] * len(agents)
    finally:
        for agent in agents:
            agent.terminate()
            agent.wait()

    for rank in plan.ranks():
        seen = json.loads((tmp_path / str(rank.rank)).read_text())
        assert seen["total"] == 2**plan.world_size - 1
        # A later setting of a name replaces an earlier one.
        told = {setting.name: here(setting.value, names) for setting in target.settings(plan, rank)}
        assert set(told) <= set(seen["env"])
        known = {name: value for name, value in told.items() if not value.startswith("<")}
        assert known == {name: seen["env"][name] for name in known}


def here(value: str, names: list[str]) -> str:
    """A value with the names of services looked up."""
    for name in names:
        value = value.replace(name, "127.0.0.1")
    return value
