"""A node that dies: what Kubernetes does alone, and what a person must do, as the heads of the manifests say."""

from pathlib import Path

import pytest

from tests.clusters import KINDS
from tests.e2e.k8s.cluster import Cluster
from tests.e2e.k8s.specs import job, rendered

# How the name of the pod of node 1 begins.
SECOND = {"indexedjob": "-1-", "jobset": "-node-0-1-", "pytorchjob": "-worker-0", "trainjob": "-node-0-1-"}
UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "seconds": 5}
SCRIPT = """
import pathlib, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
print("it has begun", flush=True)
runs = True
while runs:
    ended = torch.tensor(int(pathlib.Path("/work/ended").exists()))
    dist.all_reduce(ended)
    runs = not ended
    time.sleep(0.2)
dist.destroy_process_group()
"""


def test_jobs_of_a_dead_node_wait_until_it_is_marked_and_then_restart(
    cluster: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All kinds at once, because Kubernetes takes a minute to notice."""
    for target in KINDS:
        cluster.needs_controllers(target)
    player, work, dies = cluster.player(), cluster.claim(namespace, "work"), f"{namespace}-dies"
    player.nodes.add(dies)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SCRIPT)
    for target in KINDS:
        player.nodes.places[f"{namespace}/{target}{SECOND[target]}"] = dies
        spec = job(
            cluster.image,
            command=["mine.py"],
            files=["mine.py"],
            mounts=[{"claim": "work", "path": "/work"}],
            max_restarts=3,
            preemption={},
            kubernetes={"tolerations": [UNREACHABLE]},
        )
        cluster.apply(rendered(target, spec | {"name": target}, namespace, tmp_path))

    def have_begun(times: int) -> bool:
        logs = [player.logs(namespace, target) for target in KINDS]
        return [log.count("it has begun") for log in logs] == [2 * times] * len(KINDS)

    def evicted() -> int:
        pods = [pod for pod in cluster.pods(namespace) if pod["spec"].get("nodeName") == dies]
        return sum("deletionTimestamp" in pod["metadata"] for pod in pods)

    cluster.until(lambda: have_begun(1), "all run")
    player.lose(dies)
    cluster.until(lambda: evicted() == len(KINDS), "the pods of the node are to go")
    assert have_begun(1)
    cluster.kubectl("taint", "nodes", dies, "node.kubernetes.io/out-of-service=x:NoExecute")
    cluster.until(lambda: have_begun(2), "all have restarted")
    (work / "ended").touch()
    for target in KINDS:
        cluster.succeeds(namespace, target, target)
    cluster.kubectl("delete", "node", dies)
