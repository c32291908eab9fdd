"""The batch script with the real torchrun: every process sees what `settings` foretell, and they reach each other."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from jobspec import targets
from jobspec.artifact import load, render
from tests.slurm import Cluster

# Each process adds its rank's power of two: the sum shows that every rank took part exactly once.
SCRIPT = """
import json, os, pathlib
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor(2 ** dist.get_rank())
dist.all_reduce(total)
assert dist.get_rank() == int(os.environ["RANK"])
seen = {"env": dict(os.environ), "total": total.item()}
pathlib.Path(os.environ["OUT"], os.environ["RANK"]).write_text(json.dumps(seen))
dist.destroy_process_group()
"""


@pytest.mark.timeout(600)  # torch is imported by up to six processes, also on a machine with other work
@pytest.mark.parametrize(
    ("nodes", "launcher"), [("1", "torchrun"), ("2", "torchrun"), ("2", "srun"), ("{min: 1, max: 2}", "torchrun")]
)
def test_every_process_sees_what_settings_say_and_reaches_the_others(tmp_path: Path, nodes: str, launcher: str) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    spec = tmp_path / "job.yaml"
    spec.write_text(
        f"name: job\nnodes: {nodes}\nprocs_per_node: 2\ndevice: cpu\ncommand: [mine.py]\n"
        f"env: {{OUT: {json.dumps(str(tmp_path))}}}\nslurm: {{launcher: {launcher}}}\n"
    )
    # Two nodes that are both this machine.  The preflight would refuse that; it gets the address of another one.
    # The job's number decides its port, which no other test that runs now may have.
    cluster = Cluster(tmp_path, ["127.0.0.1"] * (1 if nodes == "1" else 2), 70000 + os.getpid() % 10000)
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    status, out = cluster.run(render("slurm", str(spec)), PATH=path)
    assert status == 0, out

    target = targets.load("slurm")
    plan = load(target, str(spec))
    for rank in plan.ranks():
        seen = json.loads((tmp_path / str(rank.rank)).read_text())
        assert seen["total"] == 2**plan.world_size - 1
        # A later setting of a name replaces an earlier one.
        told = {setting.name: setting.value for setting in target.settings(plan, rank)}
        assert set(told) <= set(seen["env"])
        known = {name: value for name, value in told.items() if not value.startswith("<")}
        assert known == {name: seen["env"][name] for name in known}
        assert seen["env"]["MASTER_ADDR"] == "127.0.0.1"
