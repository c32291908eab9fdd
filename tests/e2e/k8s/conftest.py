"""The cluster of the session and a namespace for each test."""

import json
import os
import signal
from collections.abc import Generator, Iterator

import pytest

from tests.e2e.k8s import parts
from tests.e2e.k8s.api import Api
from tests.e2e.k8s.cluster import Cluster
from tests.e2e.k8s.control_plane import SERVER, ControlPlane
from tests.e2e.k8s.images import Images
from tests.e2e.k8s.kubelet import Kubelet
from tests.e2e.k8s.names import Names
from tests.e2e.k8s.sandbox import GATEWAY, open_network

NAMESPACES = f"e2e-{os.getpid()}-"  # how the names of all our namespaces begin


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster that `python -m tests.e2e.k8s` chose."""
    chosen = os.environ.get("E2E_K8S")
    if chosen == "current":
        current = Cluster(None, None, os.environ.get("IMAGE", ""))
        yield current
        current.wait_for_end(NAMESPACES)
        return
    found = parts.find()
    if chosen is None or found is None:
        pytest.skip("no cluster and no parts of one: `make e2e-k8s` finds or builds them")
    folder = tmp_path_factory.mktemp("cluster")
    folder.parent.chmod(0o755)
    open_network()
    plane = ControlPlane(found, folder / "control-plane")
    api = kubelet = None
    try:
        plane.start()
        api = Api(str(plane.kubeconfig))
        Names(api, GATEWAY)
        kubelet = Kubelet(api, folder, Images(found), SERVER)
        if "kube-controller-manager" in found.programs:
            plane.install([name for name in found.manifests if name in found.programs])
        yield Cluster(str(plane.kubeconfig), kubelet, "train:e2e")
        assert not kubelet.errors, "\n".join(kubelet.errors)
    finally:
        if kubelet is not None:
            kubelet.close()
        if api is not None:
            api.close()
        plane.close()


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, which is taken away at its end with everything in it."""
    name = f"{NAMESPACES}{abs(hash(request.node.nodeid)) % 10**8}"
    cluster.kubectl("create", "namespace", name)
    yield name
    if request.node.stash.get(FAILED, False):
        print(cluster.told(name))
    cluster.kubectl("delete", "namespace", name, "--wait=false")
    # The first process of a pod that has just begun hears no SIGTERM yet.
    cluster.kubectl("delete", "pods", "--all", "--namespace", name, "--grace-period=1", "--wait=false")


@pytest.fixture
def cluster_runtime(cluster: Cluster, namespace: str) -> Iterator[str]:
    """A runtime as an administrator makes it, for the cluster and in the namespace: an image, a variable of its own."""
    container = {"name": "node", "image": "pytorch/pytorch", "env": [{"name": "OF_THE_RUNTIME", "value": "1"}]}
    pod = {"spec": {"containers": [container]}}
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    replicated = {"name": "node", "template": {"metadata": {"labels": labels}, "spec": {"template": pod}}}
    spec = {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": {"spec": {"replicatedJobs": [replicated]}}}
    metadata = {"name": namespace, "labels": {"trainer.kubeflow.org/framework": "torch"}}
    for kind in ("ClusterTrainingRuntime", "TrainingRuntime"):
        head = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": kind, "metadata": metadata}
        cluster.apply(json.dumps({**head, "spec": spec}), "--namespace", namespace)
    yield namespace
    cluster.kubectl("delete", "clustertrainingruntimes.trainer.kubeflow.org", namespace, "--wait=false")


def pytest_configure(config: pytest.Config) -> None:
    """Process 1 of a namespace hears only the signals that it handles: it ends after these as after Ctrl-C."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report
