"""What clusters enforce beyond Pod Security, as policies of the API server, against the pods of each kind.

Sources: the public libraries of Kyverno and Gatekeeper; OpenShift's SecurityContextConstraint restricted-v2.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import KINDS
from tests.e2e.k8s.api import Object
from tests.e2e.k8s.cluster import Cluster
from tests.e2e.k8s.specs import job, rendered

# What must hold, in CEL; `$all` are the pod's containers with its init containers.
POLICIES = {
    "capabilities": "$all.all(c, 'ALL' in c.?securityContext.?capabilities.?drop.orValue([]))",
    "digests": "$all.all(c, c.image.contains('@sha256:'))",
    "empty-dirs": "$spec.?volumes.orValue([]).all(v, !has(v.emptyDir) || has(v.emptyDir.sizeLimit))",
    "escalation": "$all.all(c, !c.?securityContext.?allowPrivilegeEscalation.orValue(true))",
    "host": "!($spec.?hostNetwork.orValue(false) || $spec.?hostPID.orValue(false) || $spec.?hostIPC.orValue(false))"
    " && $spec.?volumes.orValue([]).all(v, !has(v.hostPath))",
    "not-root": "$spec.?securityContext.?runAsNonRoot.orValue(false)"
    " || $all.all(c, c.?securityContext.?runAsNonRoot.orValue(false))",
    "openshift-users": "($all + [$spec]).all(c, !has(c.securityContext) || !has(c.securityContext.runAsUser)"
    " || (c.securityContext.runAsUser >= 1000680000 && c.securityContext.runAsUser < 1000690000))",
    "read-only-root": "$all.all(c, c.?securityContext.?readOnlyRootFilesystem.orValue(false))",
    "registries": "$all.all(c, c.image.startsWith('registry.example/'))",
    "resources": "$all.all(c, ['cpu', 'memory'].all(r, r in c.?resources.?requests.orValue({})"
    " && r in c.?resources.?limits.orValue({})))",
    "seccomp": "$spec.?securityContext.?seccompProfile.?type.orValue('') == 'RuntimeDefault'",
    "tokens": "!$spec.?automountServiceAccountToken.orValue(true)",
}
# Refused are the init containers that the operator adds to Workers, as the head of a PyTorchJob says.
REFUSED = {
    "pytorchjob": {"capabilities", "digests", "escalation", "not-root", "read-only-root", "registries"},
}
_NOTHING = {"name": "nothing", "image": "nginx", "securityContext": {"runAsUser": 0}}
_WRONG = {"containers": [_NOTHING], "hostNetwork": True, "volumes": [{"name": "a", "emptyDir": {}}]}


@pytest.fixture
def policies(cluster: Cluster, namespace: str) -> Iterator[None]:
    """Each policy judges only the pods that name it in a label, so that it can be asked alone."""
    kind = {"apiVersion": "admissionregistration.k8s.io/v1"}
    objects: list[Object] = []
    for name, expression in POLICIES.items():
        metadata = {"name": f"{namespace}-{name}"}
        every = "object.spec.containers + object.spec.?initContainers.orValue([])"
        pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        spec = {
            "matchConstraints": {"resourceRules": [pods]},
            "variables": [{"name": "spec", "expression": "object.spec"}, {"name": "all", "expression": every}],
            "validations": [{"expression": expression.replace("$", "variables."), "message": f"refused by {name}"}],
        }
        binding = {
            "policyName": metadata["name"],
            "validationActions": ["Deny"],
            "matchResources": {"objectSelector": {"matchLabels": {"policy": metadata["name"]}}},
        }
        objects.append({**kind, "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": spec})
        objects.append({**kind, "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata, "spec": binding})
    manifests = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    cluster.apply(manifests)
    yield
    cluster.kubectl("delete", "--filename", "-", "--wait=false", text=manifests)


def refused(pods: list[Object], cluster: Cluster, namespace: str) -> set[str]:
    """The policies that do not take one of the pods."""
    found = set()
    for pod in pods:
        copies = [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"copy-{name}", "labels": {"policy": f"{namespace}-{name}"}},
                "spec": {key: value for key, value in pod["spec"].items() if key != "nodeName"},
            }
            for name in POLICIES
        ]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": copies})
        command = ("create", "--dry-run=server", "--namespace", namespace, "--filename", "-")
        done = cluster.try_kubectl(*command, text=text)
        no = set(re.findall("refused by (.*)", done.stderr))
        assert len(done.stdout.splitlines()) == len(POLICIES) - len(no), done.stderr
        found |= no
    return found


@pytest.mark.parametrize("kind", [*KINDS, "elastic pytorchjob"])
def test_pods_of_a_kind_are_admitted_by_all_policies_but_the_named(
    kind: str, cluster: Cluster, namespace: str, policies: None, tmp_path: Path
) -> None:
    target = next(one for one in KINDS if one in kind)
    cluster.needs_controllers(target)
    image = f"registry.example/train:1@sha256:{'0' * 64}"
    spec = job(image, command=["jobs/scripts/own.py"], resources={"cpus": 1, "memory": "1GiB"})
    if "elastic" in kind:
        spec["nodes"] = {"min": 1, "max": 2}
    cluster.until(lambda: refused([{"spec": _WRONG}], cluster, namespace) == set(POLICIES), "all policies are in force")
    cluster.apply(rendered(target, spec, namespace, tmp_path))
    cluster.until(lambda: len(cluster.pods(namespace)) == 2, "two pods are there")
    assert refused(cluster.pods(namespace), cluster, namespace) == REFUSED.get(kind, set())


def test_limit_range_takes_all_pods_but_the_workers_of_a_pytorchjob(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """The operator's init container has 50m of CPU and 10Mi of memory; other containers get what the range gives."""
    usual = {"cpu": "1", "memory": "1Gi"}
    least, most = {"cpu": "100m", "memory": "64Mi"}, {"cpu": "2", "memory": "4Gi"}
    limits = [{"type": "Container", "min": least, "max": most, "default": usual, "defaultRequest": usual}]
    ranged = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "range"}, "spec": {"limits": limits}}
    cluster.apply(json.dumps(ranged), "--namespace", namespace)
    for target in KINDS:
        cluster.needs_controllers(target)
        spec = job(cluster.image, command=["jobs/scripts/own.py"]) | {"name": target}
        cluster.apply(rendered(target, spec, namespace, tmp_path))

    def pods() -> dict[str, int]:
        names = [pod["metadata"]["labels"]["app.kubernetes.io/instance"] for pod in cluster.pods(namespace)]
        return {target: names.count(target) for target in KINDS}

    cluster.until(lambda: pods() == {**dict.fromkeys(KINDS, 2), "pytorchjob": 1}, "all pods are there but one")
    events = ("get", "events", "--namespace", namespace, "--output=jsonpath={.items[*].message}")
    cluster.until(lambda: "minimum cpu usage per Container is 100m" in cluster.kubectl(*events), "that one is refused")
    assert pods()["pytorchjob"] == 1
