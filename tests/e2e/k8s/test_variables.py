"""Every variable that `explain` foretells is what the operator's pods and the processes in them have."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from jobspec import targets
from jobspec.artifact import load
from jobspec.explain import as_json, explain
from tests.clusters import KINDS
from tests.e2e.k8s.cluster import Cluster
from tests.e2e.k8s.specs import job, rendered

SECRET = "s3cret $(NOTE) $$"
SCRIPT = """
import json, os, pathlib, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor(2 ** dist.get_rank())
dist.all_reduce(total)
first = dict(line.split("=", 1) for line in pathlib.Path("/proc/1/environ").read_text().split("\\0") if line)
seen = {"total": total.item(), "pod": first, "process": dict(os.environ), "user": os.getuid()}
pathlib.Path("~/mine").expanduser().write_text("the home can be written")
pathlib.Path("/work-of-job", str(dist.get_rank())).write_text(json.dumps(seen))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("target", "nodes", "runtime"),
    [
        *((target, 2, None) for target in KINDS),
        ("pytorchjob", {"min": 1, "max": 2}, None),
        ("jobset", 1, None),
        ("trainjob", 2, "{}"),
        ("trainjob", 2, "TrainingRuntime/{}"),
    ],
)
def test_processes_have_the_variables_that_explain_foretells(
    target: str, nodes: object, runtime: str | None, cluster: Cluster, namespace: str, tmp_path: Path, request: Any
) -> None:
    cluster.needs_controllers(target)
    kubernetes = {"runtime": runtime.format(request.getfixturevalue("cluster_runtime"))} if runtime else {}
    work = cluster.claim(namespace, "work")
    (work / "mine.py").write_text(SCRIPT)
    secret = {"data": {"of-hf": base64.b64encode(SECRET.encode()).decode()}, "metadata": {"name": "hf"}}
    cluster.apply(json.dumps({"apiVersion": "v1", "kind": "Secret", **secret}), "--namespace", namespace)
    spec = job(
        cluster.image,
        nodes=nodes,
        procs_per_node=2,
        command=["/work-of-job/mine.py"],
        env={"EMPTY": "", "NOTE": "$(OUT) $HOME $$ $é \"'"},
        secrets=[{"TOKEN": {"secret": "hf", "key": "of-hf"}}],
        kubernetes=kubernetes,
        mounts=[{"claim": "work", "path": "/work-of-job"}],
    )
    cluster.apply(rendered(target, spec, namespace, tmp_path))
    cluster.succeeds(namespace, target, "job")

    module = targets.load(target)
    told = json.loads(as_json(explain(load(module, str(tmp_path / "job.yaml")), module)))
    seen = {int(file.name): json.loads(file.read_text()) for file in work.glob("[0-9]*")}
    assert sorted(seen) == [rank["rank"] for rank in told["ranks"]]
    addresses = {process["process"]["MASTER_ADDR"] for process in seen.values()}
    assert len(addresses) == 1
    for rank in told["ranks"]:
        found = seen[rank["rank"]]
        assert found["total"] == 2 ** told["world_size"] - 1
        all_of_it = [*told["environment"], *rank["environment"]]
        by_pod = [one for one in all_of_it if one["set_by"] != "torchrun"]
        for place, variables in (("pod", by_pod), ("process", all_of_it)):
            final = {variable["name"]: variable["value"] for variable in variables}  # the last one holds
            known = {name: value for name, value in final.items() if not value.startswith("<")}
            assert {name: found[place].get(name) for name in known} == known
            assert set(final) <= set(found[place])
            assert found[place]["TOKEN"] == SECRET
        assert found["user"] == 1000
        # No rank follows from a variable that nobody foretold.
        assert {name for name in found["pod"] if name.startswith(("PET_", "MASTER_"))} <= {
            variable["name"] for variable in all_of_it
        }
