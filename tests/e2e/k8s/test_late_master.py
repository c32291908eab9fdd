"""How long the pods of a job wait for the pod of node 0."""

import threading
from pathlib import Path

from tests.clusters import KINDS
from tests.e2e.k8s.cluster import Cluster
from tests.e2e.k8s.specs import job, rendered

OWN = ["jobs/scripts/own.py", "--steps", "1"]
# What follows the job's name in the name of node 0's pod.
FIRST = {"indexedjob": "-0-", "jobset": "-node-0-0-", "pytorchjob": "-master-0", "trainjob": "-node-0-0-"}


def start(cluster: Cluster, namespace: str, folder: Path, **keys: object) -> threading.Event:
    """A job of each kind, whose node 0 gets its image after the event."""
    pulled = threading.Event()
    for target in KINDS:
        cluster.needs_controllers(target)
        cluster.player().pulled[f"{namespace}/{target}{FIRST[target]}"] = pulled
        spec = job(cluster.image, command=OWN, **keys) | {"name": target}
        cluster.apply(rendered(target, spec, namespace, folder))
    return pulled


def test_pods_wait_for_a_node_0_whose_image_comes_late(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """Those of a PyTorchJob not in the operator's init container, which gives up after 200 s."""
    pulled = start(cluster, namespace, tmp_path)
    player, told = cluster.player(), "waiting up to 3600 s for pytorchjob-master-0"

    def wait() -> bool:
        running = [pod["metadata"]["name"] for pod in cluster.pods(namespace) if pod["status"]["phase"] == "Running"]
        return len(running) == len(KINDS) - 1 and told in player.logs(namespace, "pytorchjob-worker-0")

    cluster.until(wait, "all nodes 1 wait, and one says for whom")
    assert "init-pytorch" not in player.logs(namespace)
    pulled.set()
    for target in KINDS:
        cluster.succeeds(namespace, target, target)


def test_pods_give_node_0_up_after_the_timeout_of_the_rendezvous(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    start(cluster, namespace, tmp_path, rendezvous={"timeout": "5s"})
    for target in KINDS:
        cluster.fails(namespace, target, target)
