"""What people and clusters do to a running job: suspend it, take a pod back, delete it, submit it again."""

import json
from pathlib import Path

import pytest

from tests import cli
from tests.clusters import KINDS
from tests.e2e.k8s.cluster import RESOURCES, Cluster
from tests.e2e.k8s.specs import STEPS, job, rendered, training


def steps_once(run: Path) -> bool:
    """Whether the run has made each step, and none of them twice."""
    return [record["step"] for record in cli.records(run, "step")] == list(range(1, STEPS + 1))


def started(cluster: Cluster, target: str, namespace: str, folder: Path) -> tuple[str, Path]:
    """A training in its middle: its manifests, and the folder of its run."""
    cluster.needs_controllers(target)
    work = cluster.claim(namespace, "work")
    manifests = rendered(target, training(cluster.image, preemption={"grace": "60s"}), namespace, folder)
    cluster.apply(manifests)
    cluster.until(lambda: any(work.glob("run/step-*")), "there is a checkpoint")
    return manifests, work / "run"


def gone(cluster: Cluster, namespace: str) -> None:
    cluster.until(lambda: not cluster.pods(namespace), "all pods are gone")


def both_pods(cluster: Cluster, namespace: str) -> set[str]:
    """The pods of a job of two nodes, when both are there; one that ends late may be deleted with the job's success."""
    cluster.until(lambda: len(cluster.pods(namespace)) == 2, "two pods are there")
    return cluster.uids(namespace)


@pytest.mark.parametrize("target", KINDS)
def test_suspended_job_saves_and_gives_its_nodes_back_and_goes_on_when_resumed(
    target: str, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    _, run = started(cluster, target, namespace, tmp_path)

    def suspend(suspended: bool) -> None:
        spec: dict[str, object] = {"suspend": suspended}
        patch = json.dumps({"spec": {"runPolicy": spec} if target == "pytorchjob" else spec})
        cluster.kubectl("patch", RESOURCES[target], "job", "--type=merge", f"--patch={patch}", "--namespace", namespace)

    suspend(True)
    gone(cluster, namespace)
    assert len(cli.records(run, "stop")) == 1
    suspend(False)
    cluster.succeeds(namespace, target, "job")
    assert steps_once(run)


@pytest.mark.parametrize("target", KINDS)
def test_pod_that_the_cluster_takes_back_saves_and_the_job_goes_on(
    target: str, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """By the API that `kubectl drain` uses; a scheduler that needs the place deletes the pod in the same way."""
    _, run = started(cluster, target, namespace, tmp_path)
    name = cluster.pods(namespace)[-1]["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
    cluster.kubectl("create", "--raw", path, "--filename", "-", text=json.dumps(eviction))
    cluster.succeeds(namespace, target, "job")
    assert len(cli.records(run, "stop")) == 1
    assert steps_once(run)


@pytest.mark.parametrize("target", KINDS)
def test_deleted_job_saves_within_the_grace_period_and_a_new_one_of_its_name_goes_on(
    target: str, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    manifests, run = started(cluster, target, namespace, tmp_path)
    cluster.kubectl("delete", "--filename", "-", f"--timeout={cli.HANG_S}s", text=manifests)
    gone(cluster, namespace)
    assert len(cli.records(run, "stop")) == 1
    left = ("get", "services,jobs", "--namespace", namespace, "--output=name")
    cluster.until(lambda: not cluster.kubectl(*left), "nothing of the job is left")
    cluster.apply(manifests)
    cluster.succeeds(namespace, target, "job")
    assert steps_once(run)


@pytest.mark.parametrize("target", KINDS)
def test_job_that_is_applied_again_is_left_as_it_is(
    target: str, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    cluster.needs_controllers(target)
    manifests = rendered(
        target, job(cluster.image, command=["jobs/scripts/own.py", "--steps", "1"]), namespace, tmp_path
    )
    cluster.apply(manifests)
    before = both_pods(cluster, namespace)
    first = cluster.get(namespace, RESOURCES[target], "job")["metadata"]["uid"]

    def apply_again() -> None:
        cluster.apply(manifests)
        assert cluster.get(namespace, RESOURCES[target], "job")["metadata"]["uid"] == first

    apply_again()
    cluster.succeeds(namespace, target, "job")
    apply_again()
    assert cluster.uids(namespace) <= before


@pytest.mark.parametrize("target", KINDS)
def test_changed_manifest_does_not_touch_the_pods_of_a_job_that_runs(
    target: str, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    cluster.needs_controllers(target)
    first, second = (
        rendered(target, job(cluster.image, command=["jobs/scripts/own.py", "--steps", steps]), namespace, tmp_path)
        for steps in ("20", "21")
    )
    cluster.apply(first)
    before = both_pods(cluster, namespace)
    done = cluster.try_kubectl("apply", "--server-side", "--filename", "-", text=second)
    refused = target in ("indexedjob", "jobset")
    assert (done.returncode != 0, "immutable" in done.stderr) == (refused, refused)
    cluster.succeeds(namespace, target, "job")
    assert cluster.uids(namespace) <= before
