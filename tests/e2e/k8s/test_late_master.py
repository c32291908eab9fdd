"""What the pods of a PyTorchJob wait for."""

import threading
from pathlib import Path

from tests.cli import HANG_S
from tests.e2e.k8s.cluster import RESOURCES, Cluster
from tests.e2e.k8s.specs import job, rendered

OWN = ["jobs/scripts/own.py", "--steps", "1"]


def test_workers_wait_for_a_master_whose_image_comes_late(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """Not in the operator's init container, which gives up after 200 s."""
    cluster.needs_controllers("pytorchjob")
    player = cluster.player()
    player.pulled[f"{namespace}/job-master-0"] = pulled = threading.Event()
    cluster.apply(rendered("pytorchjob", job(cluster.image, command=OWN), namespace, tmp_path))
    told = "waiting up to 3600 s for job-master-0"
    cluster.until(lambda: told in player.logs(namespace, "job-worker-0"), "the worker says for whom it waits")
    assert "init-pytorch" not in player.logs(namespace)
    pulled.set()
    cluster.succeeds(namespace, "pytorchjob", "job")


def test_workers_give_a_master_up_after_the_timeout_of_the_rendezvous(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    cluster.needs_controllers("pytorchjob")
    cluster.player().pulled[f"{namespace}/job-master-0"] = threading.Event()
    spec = job(cluster.image, command=OWN, rendezvous={"timeout": "5s"})
    cluster.apply(rendered("pytorchjob", spec, namespace, tmp_path))
    words = ("--for=condition=Failed", f"--timeout={HANG_S}s", "--namespace", namespace)
    cluster.kubectl("wait", *words, f"{RESOURCES['pytorchjob']}/job")
