"""Training in pods: it ends with the weights of a run on this machine, also when a pod fails in the middle."""

from pathlib import Path

import pytest

from tests import cli
from tests.clusters import KINDS
from tests.e2e.k8s.cluster import Cluster
from tests.e2e.k8s.specs import STEPS, TRAINING, job, rendered, training
from train.config import to_argv


@pytest.fixture(scope="module")
def weights_sha256(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the same training without a cluster: torchrun on this machine."""
    folder = tmp_path_factory.mktemp("alone")
    done = cli.train(2, *to_argv({**TRAINING, "device": "cpu", "run_dir": str(folder)}))
    assert done.returncode == 0, done.stderr
    return str(cli.records(folder, "end")[0]["weights_sha256"])


@pytest.mark.parametrize("target", KINDS)
def test_job_succeeds_with_the_weights_of_a_run_without_a_cluster(
    target: str, cluster: Cluster, namespace: str, tmp_path: Path, weights_sha256: str
) -> None:
    cluster.needs_controllers(target)
    work = cluster.claim(namespace, "work")
    cluster.apply(rendered(target, training(cluster.image), namespace, tmp_path))
    cluster.succeeds(namespace, target, "job")
    (end,) = cli.records(work / "run", "end")
    assert (end["step"], end["weights_sha256"]) == (STEPS, weights_sha256)


@pytest.mark.parametrize("target", KINDS)
def test_pod_that_is_killed_is_replaced_and_the_job_resumes(
    target: str, cluster: Cluster, namespace: str, tmp_path: Path, weights_sha256: str
) -> None:
    cluster.needs_controllers(target)
    work, player = cluster.claim(namespace, "work"), cluster.player()
    cluster.apply(rendered(target, training(cluster.image), namespace, tmp_path))
    cluster.until(lambda: any(work.glob("run/step-*")), "there is a checkpoint")
    player.kill(namespace, cluster.pods(namespace)[-1]["metadata"]["name"])
    cluster.succeeds(namespace, target, "job")
    (end,) = cli.records(work / "run", "end")
    assert (end["step"], end["weights_sha256"]) == (STEPS, weights_sha256)
    assert f"resume: {Path('/checkpoints/run/step-')}" in player.logs(namespace)


@pytest.mark.parametrize("target", KINDS)
def test_job_that_always_fails_is_tried_again_and_then_given_up(
    target: str, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    cluster.needs_controllers(target)
    spec = job(cluster.image, command=["jobs/scripts/own.py", "--steps", "not-a-number"], max_restarts=1)
    cluster.apply(rendered(target, spec, namespace, tmp_path))
    cluster.fails(namespace, target, "job")
    starts = [log for log in cluster.player().logs(namespace).split("== ") if "not-a-number" in log]
    assert 2 < len(starts) <= 6, "two nodes, each started again once or twice"
