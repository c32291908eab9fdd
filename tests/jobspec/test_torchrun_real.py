"""The torchrun script with the real torchrun: every process sees what the target's `settings` foretell."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.run import parse_args

from jobspec import targets
from jobspec.artifact import load, render
from jobspec.plan import Plan, make_plan
from jobspec.spec import Job
from train.config import TrainConfig, to_argv


def parsed_by_torchrun(**keys: object) -> list[str]:
    """A job's program as torchrun reads it from its command line."""
    job = {"name": "job", "nodes": 1, "procs_per_node": 2, "device": "cpu", **keys}
    plan = make_plan(Job.model_validate(job, strict=True))
    read = parse_args(["--standalone", "--nproc-per-node=2", *plan.torchrun_program])
    return [*(["-m"] if read.module else []), read.training_script, *read.training_script_args]


@pytest.mark.parametrize("program", [["mine.py"], ["-m", "mine"]])
@given(arguments=st.lists(st.text(alphabet="-almnogx= '\n") | st.sampled_from(["--", "--log", "-h"]), max_size=4))
def test_torchrun_passes_on_every_argument(program: list[str], arguments: list[str]) -> None:
    assert parsed_by_torchrun(command=[*program, *arguments]) == [*program, *arguments]


def test_no_flag_of_train_is_read_by_torchrun() -> None:
    settings = {name: field.default for name, field in TrainConfig.model_fields.items()} | {
        "checkpoint_dir": "--",
        "data_root": "--log -h\n",
        "sync_batchnorm": False,
    }
    program = parsed_by_torchrun(train=settings)
    assert sorted(program) == sorted(["-m", "train", *to_argv(settings)])


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
