"""What each process of a real job sees is what `render-job explain` says of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from jobspec import targets
from jobspec.artifact import load
from jobspec.environment import NODE_0, NODE_OF_RANK_0
from jobspec.explain import as_json, explain
from jobspec.plan import PORTS
from jobspec.problems import SpecError
from tests.e2e.slurm import user
from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.specs import script

pytestmark = pytest.mark.timeout(2400)

_WRITE_ENVIRONMENT = """
import json, os, pathlib, socket
seen = dict(os.environ, host=socket.gethostname(), uid=os.getuid())
pathlib.Path(os.environ["OUT"], os.environ["RANK"]).write_text(json.dumps(seen))
"""
_SPEC = """
name: seen
nodes: 2
procs_per_node: 2
command: [{folder}/mine.py]
env: {{OUT: {folder}, NOTE: 'two words $HOME'}}
time_limit: 20m
"""
LAUNCHES = {
    "torchrun": (),
    "one task per GPU": ("slurm.launcher=srun",),
    "c10d": ("rendezvous.backend=c10d",),
    "one node": ("nodes=1",),
    "a task of an array": ("slurm.array=3-3",),
}


@pytest.mark.parametrize("launch", LAUNCHES)
def test_each_process_sees_what_explain_says_of_this_allocation(launch: str, cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(_WRITE_ENVIRONMENT)
    submitted = cluster.submit(script(cluster, _SPEC.format(folder=tmp_path), *LAUNCHES[launch]))
    job = cluster.wait_for_end(submitted if launch != "a task of an array" else f"{submitted}_3")
    assert job.state == "COMPLETED", cluster.logs()

    hosts = cluster.command("scontrol", "show", "hostnames", job.fields["NodeList"]).split()
    slurm = targets.load("slurm")
    plan = load(slurm, str(cluster.folder / "job.yaml"), LAUNCHES[launch])
    text = as_json(explain(plan, slurm))
    assert launch == "one node" or hosts == ["n2", "n10"]
    numbered = sorted(hosts) if launch == "c10d" else hosts
    named = {NODE_0: hosts[0], NODE_OF_RANK_0: numbered[0]}
    named |= {process["node"]: numbered[process["node_rank"]] for process in json.loads(text)["ranks"]}
    for words, host in named.items():
        text = text.replace(words, host)
    told = json.loads(text)
    seen = {int(file.name): json.loads(file.read_text()) for file in tmp_path.glob("[0-9]*")}
    assert sorted(seen) == [process["rank"] for process in told["ranks"]]
    for process in told["ranks"]:
        process["environment"] += told["environment"]
        _compare(process, seen[process["rank"]], job.fields["JobId"])


def _compare(process: dict[str, Any], env: dict[str, Any], job_id: str) -> None:
    assert env["host"] == process["node"]
    assert env["uid"] == user.UID, "not the user who submitted it"
    # Each process sees all GPUs of its node and takes its own.
    assert process["device"] == f"cuda:{env['LOCAL_RANK']}"
    # Of a name that is set twice the later value holds.
    told = {variable["name"]: variable["value"] for variable in process["environment"]}
    in_words = {
        "<job ID>": job_id,
        "<number of restarts>": "0",
        "<array task ID>": "3",
        "<numbers of the job's 2 GPUs on the node>": "0,1",
        "<port derived from the job ID>": str(PORTS.start + int(job_id) % len(PORTS)),
    }
    for words, value in in_words.items():
        told = {name: text.replace(words, value) for name, text in told.items()}
    known = {name: value for name, value in told.items() if "<" not in value}
    assert {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES"} <= set(known)
    assert known == {name: env.get(name) for name in known}
    assert set(told) <= set(env)
    plumbing = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_", "PET_", "GROUP_", "LOCAL_WORLD", "NODE_RANK")
    assert {name for name in env if name.startswith(plumbing)} <= set(told), "a variable that explain does not tell of"


@pytest.mark.slow
@pytest.mark.parametrize("option", ["gpu-bind=single:1", "gpus-per-task=1", "gpus-per-node=1", "gpus=2"])
def test_an_option_of_srun_that_the_spec_refuses_hides_gpus_from_ranks(
    option: str, cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(_WRITE_ENVIRONMENT)
    text = script(cluster, _SPEC.format(folder=tmp_path), "slurm.launcher=srun")
    job = cluster.wait_for_end(cluster.submit(text.replace("\nsrun ", f"\nsrun --{option} ")))
    assert job.state == "COMPLETED", cluster.logs()
    seen = [json.loads(file.read_text())["CUDA_VISIBLE_DEVICES"] for file in tmp_path.glob("[0-9]*")]
    assert len(seen) == 4 and "0,1" not in seen  # the GPUs that explain names for each process

    name, _, value = option.partition("=")
    with pytest.raises(SpecError, match=f"slurm.srun_options: {name} is"):
        script(cluster, _SPEC.format(folder=tmp_path), f"slurm.srun_options.{name}={value}")
