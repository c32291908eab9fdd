"""Kueue and we write into one object: applied again in each state of its queue, a job stays as it is."""

import difflib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import KINDS
from tests.e2e.k8s.cluster import Cluster
from tests.e2e.k8s.specs import job, rendered

KUEUE = "kueue.x-k8s.io/v1beta2"
BLOCK = "cloud.example/block"
HOST = "kubernetes.io/hostname"
INDEX = "batch.kubernetes.io/job-completion-index"
# What differs from one pod to the next of its kind.
_OWN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=kube-api-access-)\w+")
Queue = Callable[..., Callable[[str], str]]


@pytest.fixture
def queue(cluster: Cluster, namespace: str) -> Iterator[Queue]:
    """Makes the LocalQueue `lq` with a flavour; what it returns sets the stopPolicy of the queue behind it."""
    if cluster.try_kubectl("get", "clusterqueues.kueue.x-k8s.io").returncode:
        pytest.skip("this cluster has no Kueue")

    def make(**flavor: object) -> Callable[[str], str]:
        resources = [{"name": name, "nominalQuota": quota} for name, quota in (("cpu", 100), ("memory", "100Gi"))]
        flavors = [{"name": namespace, "resources": resources}]
        groups = [{"coveredResources": ["cpu", "memory"], "flavors": flavors}]
        for kind, name, spec in (
            ("ResourceFlavor", namespace, flavor),
            ("ClusterQueue", namespace, {"namespaceSelector": {}, "resourceGroups": groups}),
            ("LocalQueue", "lq", {"clusterQueue": namespace}),
        ):
            metadata = {"name": name, **({"namespace": namespace} if kind == "LocalQueue" else {})}
            cluster.apply(json.dumps({"apiVersion": KUEUE, "kind": kind, "metadata": metadata, "spec": spec}))
        patch = ("patch", "clusterqueues.kueue.x-k8s.io", namespace, "--type=merge", "--patch")
        return lambda policy: cluster.kubectl(*patch, json.dumps({"spec": {"stopPolicy": policy}}))

    yield make
    for kind in ("clusterqueues", "resourceflavors", "topologies"):
        words = ("delete", f"{kind}.kueue.x-k8s.io", namespace, "--wait=false", "--ignore-not-found")
        cluster.kubectl(*words)


def queued(cluster: Cluster, **keys: Any) -> dict[str, Any]:
    kubernetes = {"queue": "lq", **keys.pop("kubernetes", {})}
    return job(cluster.image, resources={"cpus": 1, "memory": "1GiB"}, kubernetes=kubernetes, **keys)


@pytest.mark.parametrize(("target", "runtime"), [*((target, False) for target in KINDS), ("trainjob", True)])
def test_job_applied_twice_in_each_state_of_its_queue_has_the_pods_of_one_apply(
    target: str,
    runtime: bool,
    cluster: Cluster,
    namespace: str,
    queue: Queue,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Waiting, admitted, evicted and admitted again."""
    cluster.needs_controllers(target)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text('import time\nprint("it has begun", flush=True)\ntime.sleep(3000)\n')
    (tmp_path / "more.txt").touch()
    tolerations = [{"key": "gpu", "operator": "Exists"}, {"key": "spot", "operator": "Exists"}]
    stop = queue(nodeLabels={"disk": "ssd", "pool": "training"}, tolerations=tolerations[:1])
    kubernetes: dict[str, Any] = {"node_selector": {"disk": "ssd"}, "tolerations": tolerations}
    if runtime:
        kubernetes["runtime"] = request.getfixturevalue("cluster_runtime")
    keys = {
        "command": ["mine.py"],
        "files": ["mine.py", "more.txt"],
        "rendezvous": {"port": 20000},
        "kubernetes": kubernetes,
    }
    once, twice = (
        rendered(target, queued(cluster, **keys) | {"name": name}, namespace, tmp_path) for name in ("job-1", "job-2")
    )
    stop("Hold")
    cluster.apply(once)
    begun = 0
    for policy, nodes in (("Hold", 0), ("None", 2), ("HoldAndDrain", 0), ("None", 2)):
        stop(policy)
        for _ in range(2):
            cluster.apply(twice)
        begun += 2 * nodes
        has_pods(2 * nodes, cluster, namespace)
        have_begun(begun, cluster, namespace)
        before = cluster.uids(namespace)
        for _ in range(2):
            cluster.apply(twice)
        diff = cluster.try_kubectl("diff", "--server-side", "--filename", "-", text=twice)
        assert (diff.returncode, diff.stdout) == (0, ""), diff.stdout + diff.stderr
        assert cluster.uids(namespace) == before
        applied_once, applied_twice = (of_job(name, cluster, namespace) for name in ("job-1", "job-2"))
        assert not list(difflib.unified_diff(applied_once, applied_twice))
        assert sum(line == "{" for line in applied_once) == nodes


def test_a_job_that_waits_says_why(cluster: Cluster, namespace: str, queue: Queue, tmp_path: Path) -> None:
    """The words of the table in docs/troubleshooting.md; the queue has 100 CPUs."""
    cluster.needs_controllers("indexedjob")
    stop = queue()

    def waits(name: str, cpus: int, reason: str, where: str = "lq") -> None:
        keys = {"name": name, "resources": {"cpus": cpus, "memory": "1GiB"}, "kubernetes": {"queue": where}}
        cluster.apply(rendered("indexedjob", queued(cluster, command=["mine.py"]) | keys, namespace, tmp_path))
        words = ("get", "workloads.kueue.x-k8s.io", "--namespace", namespace, "--output=json")
        cluster.until(lambda: reason in cluster.kubectl(*words), f"{name} waits because {reason}")

    waits("far", 1, "LocalQueue far doesn't exist", where="far")
    stop("Hold")
    waits("held", 30, f"ClusterQueue {namespace} is inactive")
    stop("None")
    waits("later", 30, f"insufficient unused quota for cpu in flavor {namespace}, 20 more needed")
    waits("vast", 60, f"insufficient quota for cpu in flavor {namespace}")


def has_pods(number: int, cluster: Cluster, namespace: str) -> None:
    cluster.until(lambda: len(cluster.pods(namespace)) == number, f"there are {number} pods")


def have_begun(number: int, cluster: Cluster, namespace: str) -> None:
    logs = cluster.player().logs
    cluster.until(lambda: logs(namespace).count("it has begun") == number, f"{number} processes have begun")


def of_job(name: str, cluster: Cluster, namespace: str) -> list[str]:
    """What the pods of a job are, as lines of JSON, without what is each pod's own."""
    found = []
    for pod in cluster.pods(namespace):
        if pod["metadata"]["labels"]["app.kubernetes.io/instance"] == name:
            keys = {section: sorted(pod["metadata"][section]) for section in ("labels", "annotations")}
            pod["spec"]["tolerations"].sort(key=json.dumps)  # Kueue has no order
            text = json.dumps({**keys, "spec": pod["spec"]}, indent=1, sort_keys=True)
            found.append(_OWN.sub("", text.replace(name, "job")))
    return "\n".join(sorted(found)).splitlines()


@pytest.fixture
def placed(cluster: Cluster, namespace: str, queue: Queue, tmp_path: Path) -> Callable[..., list[str]]:
    """Says where Kueue puts the nodes of a job, in their order, if the blocks have room for these numbers of pods."""

    def place(target: str, blocks: dict[str, int], nodes: int, **topology: object) -> list[str]:
        cluster.needs_controllers(target)
        stop = queue(nodeLabels={"e2e": namespace}, topologyName=namespace)
        levels = {"levels": [{"nodeLabel": BLOCK}, {"nodeLabel": HOST}]}
        kind = {"apiVersion": KUEUE, "kind": "Topology"}
        cluster.apply(json.dumps({**kind, "metadata": {"name": namespace}, "spec": levels}))
        for block, pods in blocks.items():
            node(cluster, f"{namespace}-{block}", {BLOCK: f"block-{block}", "e2e": namespace}, pods)
        keys = {"nodes": nodes, "topology": {"required": BLOCK, **topology}}
        cluster.apply(rendered(target, queued(cluster, command=["jobs/scripts/own.py"]) | keys, namespace, tmp_path))
        stop("None")
        has_pods(nodes, cluster, namespace)
        cluster.until(lambda: all(hosts(cluster, namespace)), "each pod has its place")
        return [host.removeprefix(f"{namespace}-") for host in hosts(cluster, namespace)]

    return place


@pytest.mark.parametrize("target", KINDS)
def test_all_pods_of_a_job_with_required_topology_are_in_one_block(
    target: str, placed: Callable[..., list[str]]
) -> None:
    """Block a has room for one pod, and b for all three; one pod alone would go to a, where it fits best."""
    assert placed(target, {"a": 1, "b": 3}, nodes=3) == ["b"] * 3


@pytest.mark.parametrize("target", [kind for kind in KINDS if kind != "pytorchjob"])
def test_each_segment_of_ranks_is_in_one_block(target: str, placed: Callable[..., list[str]]) -> None:
    """Both blocks have room for three of the four pods."""
    assert placed(target, {"a": 3, "b": 3}, nodes=4, segment=2) in (["a", "a", "b", "b"], ["b", "b", "a", "a"])


def hosts(cluster: Cluster, namespace: str) -> list[str]:
    """The nodes that the pods must have, in the order of their numbers; "" before Kueue has chosen one."""
    pods = sorted(cluster.pods(namespace), key=lambda pod: pod["metadata"]["labels"].get(INDEX, ""))
    return [pod["spec"].get("nodeSelector", {}).get(HOST, "") for pod in pods]


def test_a_jobset_without_kueue_has_all_its_pods_in_the_block_of_its_first(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    cluster.needs_controllers("jobset")
    player = cluster.player()
    node(cluster, f"{namespace}-a", {BLOCK: "block-a"}, 3)
    player.nodes.places[f"{namespace}/job-node-0-0-"] = f"{namespace}-a"
    keys: dict[str, Any] = {"nodes": 3, "topology": {"required": BLOCK}}
    spec = job(cluster.image, command=["jobs/scripts/own.py"]) | keys
    cluster.apply(rendered("jobset", spec, namespace, tmp_path))
    has_pods(3, cluster, namespace)
    pods = sorted(cluster.pods(namespace), key=lambda pod: pod["metadata"]["labels"][INDEX])
    assert [pod["spec"].get("nodeSelector", {}).get(BLOCK) for pod in pods] == [None, "block-a", "block-a"]


def node(cluster: Cluster, name: str, labels: dict[str, str], pods: int) -> None:
    """A node for Kueue to count with; the pods are played all the same."""
    metadata = {"name": name, "labels": {HOST: name, **labels}}
    cluster.kubectl(
        "create", "--filename", "-", text=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    )
    room = {"cpu": str(pods), "memory": "100Gi", "pods": "100"}
    status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
    cluster.kubectl("patch", "node", name, "--subresource=status", f"--patch={json.dumps({'status': status})}")
    cluster.kubectl("patch", "node", name, '--patch={"spec": {"taints": null}}')  # at once
    if cluster.kubelet is not None:
        cluster.kubelet.nodes.live.add(name)
