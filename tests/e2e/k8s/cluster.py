"""What the tests do with a cluster: kubectl as a person uses it, and a look into pods that are played here."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli import HANG_S
from tests.e2e.k8s.api import BUSY, Object
from tests.e2e.k8s.kubelet import Kubelet

# Target → resource of its top object, where its spec holds `suspend`, and the condition of success.
RESOURCES = {
    "indexedjob": "jobs.batch",
    "jobset": "jobsets.jobset.x-k8s.io",
    "pytorchjob": "pytorchjobs.kubeflow.org",
    "trainjob": "trainjobs.trainer.kubeflow.org",
}
DONE = {"indexedjob": "Complete", "jobset": "Completed", "pytorchjob": "Succeeded", "trainjob": "Complete"}

# The webhooks of Trainer and Kueue look into what they have heard of so far, not at the API server; and on a busy
# machine an operator, the API server and kubectl answer late.
_TOO_SOON = (
    *("trainingruntime must be created before the trainjob is created", "denied the request: runtime '"),
    *("no endpoints available", "context deadline exceeded", "client.timeout", *BUSY),
)


class Cluster:
    """A cluster; `kubelet` is None where it has nodes of its own, which run `image`."""

    def __init__(self, kubeconfig: str | None, kubelet: Kubelet | None, image: str) -> None:
        self._options = ["--kubeconfig", kubeconfig] if kubeconfig else []
        self.kubelet = kubelet
        self.image = image

    def try_kubectl(self, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        command = ["kubectl", *self._options, *words]
        return subprocess.run(command, input=text, capture_output=True, text=True)

    def kubectl(self, *words: str, text: str | None = None) -> str:
        """What kubectl prints; a failure and a warning end the test, but not a server that cannot answer yet."""
        said = ""

        def answered() -> bool:
            nonlocal said
            done = self.try_kubectl(*words, text=text)
            said = done.stdout  # of the last try alone: one that failed may have printed half of it
            if any(reason.lower() in done.stderr.lower() for reason in _TOO_SOON):
                return False
            assert done.returncode == 0, f"{' '.join(done.args)}: {done.stderr}{done.stdout}"
            assert "Warning" not in done.stderr, done.stderr
            return True

        self.until(answered, "the API server and the operators answer")
        return said

    def apply(self, manifests: str, *words: str) -> str:
        """`render-job … | kubectl apply --server-side -f -`, which refuses fields that the API server does not know."""
        return self.kubectl("apply", "--server-side", "--filename", "-", *words, text=manifests)

    def needs(self, target: str) -> None:
        """Skip the test where the kind of a target is not served."""
        found = self.try_kubectl("get", RESOURCES[target], "--all-namespaces")
        if "doesn't have a resource type" in found.stderr:
            pytest.skip(f"this cluster has no {RESOURCES[target]}: its operator is not installed")
        assert found.returncode == 0, found.stderr

    def needs_controllers(self, target: str) -> None:
        """Skip the test where nobody makes pods of a target's objects."""
        self.needs(target)
        if self.kubelet is None and not self.image:
            pytest.skip("IMAGE=NAME says which image the nodes of this cluster can run")
        if self.kubelet is not None and self.try_kubectl("get", "deployments", "--all-namespaces").stdout == "":
            pytest.skip("no kube-controller-manager: `make e2e-k8s` without KUBEBUILDER_ASSETS builds one")

    def player(self) -> Kubelet:
        """The kubelet of pods that are played here; skips the test on a cluster with nodes of its own."""
        if self.kubelet is None:
            pytest.skip("this test looks into its pods' processes and files; this cluster runs them elsewhere")
        return self.kubelet

    def claim(self, namespace: str, name: str) -> Path:
        """A claim that several nodes can write, made in the cluster, and its folder."""
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
        self.apply(json.dumps(claim), "--namespace", namespace)
        folder = self.player().claims / namespace / name
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        return folder

    def get(self, namespace: str, resource: str, name: str) -> Object:
        found: Object = json.loads(self.kubectl("get", resource, name, "--namespace", namespace, "--output=json"))
        return found

    def pods(self, namespace: str) -> list[Object]:
        found: list[Object] = json.loads(
            self.kubectl("get", "pods", "--namespace", namespace, "--output=json", "--sort-by=.metadata.name")
        )["items"]
        return found

    def uids(self, namespace: str) -> set[str]:
        """Of all pods."""
        return {pod["metadata"]["uid"] for pod in self.pods(namespace)}

    def succeeds(self, namespace: str, target: str, name: str) -> None:
        """Wait until the job has succeeded; a job that fails does not."""
        failed = "Failed"

        def done() -> bool:
            conditions = self.get(namespace, RESOURCES[target], name).get("status", {}).get("conditions") or []
            true = {condition["type"]: condition for condition in conditions if condition["status"] == "True"}
            assert failed not in true, true[failed]
            return DONE[target] in true

        self.until(done, f"{target} {name} has succeeded")

    def fails(self, namespace: str, target: str, name: str) -> None:
        words = ("--for=condition=Failed", f"--timeout={HANG_S}s", "--namespace", namespace)
        self.kubectl("wait", *words, f"{RESOURCES[target]}/{name}")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + HANG_S
        while not condition():
            assert time.monotonic() < end, f"it did not come to pass that {what}"
            time.sleep(0.5)  # kubectl itself takes as much of a core

    def wait_for_end(self, start: str) -> None:
        """Wait until the namespaces are gone whose names begin so."""
        names = self.kubectl("get", "namespaces", "--output=name").split()
        for name in names:
            if name.startswith(f"namespace/{start}"):
                self.kubectl("wait", "--for=delete", name, f"--timeout={HANG_S}s")

    def told(self, namespace: str) -> str:
        """Everything that explains a test that failed: pods, events, and what the pods printed."""
        objects = self.try_kubectl("get", "pods,services,events", "--namespace", namespace, "--output=wide").stdout
        return objects + (self.kubelet.logs(namespace) if self.kubelet else "")
