"""`kubernetes.pod` and `gpu`: what clusters ask for beyond the keys of a spec, judged by their own schemas."""

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from jobspec import kubernetes
from jobspec.artifact import render
from jobspec.problems import SpecError
from tests.clusters import KINDS, documents, of_kind, pod_templates

SPEC = """
name: job
nodes: 2
procs_per_node: 8
image: a/b:1
gpu: h100
command: [mine.py, "$(A)"]
env: {FIRST: "1e3"}
kubernetes:
  gpu_types: {h100: {nvidia.com/gpu.product: NVIDIA-H100}, a100: {nvidia.com/gpu.product: A100}}
  node_selector: {pool: "no"}
  tolerations: [{key: gpu, operator: Exists}]
  pod:
    runtimeClassName: nvidia
    hostIPC: true
    tolerations: [{key: spot, operator: Equal, value: "1e3"}]
    affinity:
      nodeAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: ["012", "no"]}]}]
    initContainers: [{name: fetch, image: b, command: [sh, -c, "echo '$(A)' \\"x: y\\""]}]
    securityContext: {supplementalGroups: [7]}
    resourceClaims: [{name: nic, resourceClaimTemplateName: rdma}]
    volumes: [{name: driver, hostPath: {path: /opt/driver}}]
    containers:
      - name: node
        resources: {claims: [{name: nic}]}
        env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        envFrom: [{configMapRef: {name: settings}}]
        volumeMounts: [{name: driver, mountPath: /opt/driver}]
      - {name: sidecar, image: c}
"""
SCHEMAS = {"jobset": "jobset-v1alpha2.json", "pytorchjob": "pytorchjob-v1.json"}


@pytest.mark.parametrize("kind", KINDS)
def test_patch_is_in_every_pod_and_the_rest_stays(kind: str, spec: str) -> None:
    plain = pod_templates(documents(render(kind, spec, ["kubernetes.pod="])))
    patched = pod_templates(documents(render(kind, spec)))
    assert len(plain) == len(patched)
    for before, after in zip(plain, patched, strict=True):
        after = copy.deepcopy(after)  # a PyTorchJob has one template twice
        new: dict[str, Any] = after["spec"]
        assert (new.pop("runtimeClassName"), new.pop("hostIPC")) == ("nvidia", True)
        terms = new.pop("affinity")["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert terms["nodeSelectorTerms"][0]["matchExpressions"][0]["values"] == ["012", "no"]
        *ours, theirs = new.pop("initContainers")
        assert theirs["command"][2] == "echo '$(A)' \"x: y\""
        new |= {"initContainers": ours} if ours else {}
        assert new.pop("resourceClaims") == [{"name": "nic", "resourceClaimTemplateName": "rdma"}]
        assert new["tolerations"].pop() == {"key": "spot", "operator": "Equal", "value": "1e3"}
        assert new["securityContext"].pop("supplementalGroups") == [7]
        assert new["volumes"].pop()["name"] == "driver"
        security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}
        assert new["containers"].pop() == {"name": "sidecar", "image": "c", "securityContext": security}
        (container,) = new["containers"]
        assert container["resources"].pop("claims") == [{"name": "nic"}]
        assert container["env"].pop()["name"] == "NODE_NAME"
        assert container.pop("envFrom") == [{"configMapRef": {"name": "settings"}}]
        assert container["volumeMounts"].pop()["mountPath"] == "/opt/driver"
        assert after == before


def test_a_variable_of_the_patch_replaces_ours_as_a_whole(spec: str) -> None:
    theirs = {"name": "OMP_NUM_THREADS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}
    patch = {"containers": [{"name": "node", "env": [theirs]}]}
    (template,) = pod_templates(documents(render("jobset", spec, [f"kubernetes.pod={json.dumps(patch)}"])))
    env = template["spec"]["containers"][0]["env"]
    assert [one for one in env if one["name"] == "OMP_NUM_THREADS"] == [theirs]


_BIG = "[{name: node, volumeMounts: [{name: big, mountPath: /tmp}]}]"


@pytest.mark.parametrize("setting", ["mounts=[{path: /tmp/, claim: big}]", f"kubernetes.pod.containers={_BIG}"])
def test_a_mount_at_tmp_takes_the_place_of_ours(setting: str, spec: str) -> None:
    (template,) = pod_templates(documents(render("jobset", spec, [setting])))
    mounts = template["spec"]["containers"][0]["volumeMounts"]
    (at_tmp,) = (mount for mount in mounts if mount["mountPath"].rstrip("/") == "/tmp")
    assert "subPath" not in at_tmp


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", [kubernetes.OLDEST, kubernetes.NEWEST])
def test_patched_pods_fit_the_schemas(kind: str, version: str, spec: str, schemas: Path) -> None:
    # resource claims of a pod changed their form in 1.31.
    manifests = documents(render(kind, spec, ["kubernetes.pod.resourceClaims=[]"]))
    for template in pod_templates(manifests):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": template["spec"]}
        kubernetes_validate.validate(pod, version, strict=True)
    if kind in SCHEMAS:
        schema = json.loads((schemas / SCHEMAS[kind]).read_text())
        jsonschema.Draft202012Validator(schema).validate(manifests[-1])


def test_requests_of_the_patch_stand_beside_our_limits(spec: str) -> None:
    requests = "kubernetes.pod.containers=[{name: node, resources: {requests: {cpu: 500m, memory: 1.5G}}}]"
    (template,) = pod_templates(documents(render("jobset", spec, [requests, "resources.cpus=8"])))
    resources = template["spec"]["containers"][0]["resources"]
    assert resources["requests"] == {"cpu": "500m", "memory": "1.5G"}
    assert resources["limits"] == {"cpu": "8", "nvidia.com/gpu": "8"}


@pytest.mark.parametrize("key", ["no", "1.5", "app.kubernetes.io/name"])
def test_keys_stay_text_with_and_without_a_patch(key: str, spec: str) -> None:
    labels = "kubernetes.labels={" + json.dumps(key) + ": a}"
    for patch in ("kubernetes.pod=", "kubernetes.pod.hostPID=false"):
        (template,) = pod_templates(documents(render("jobset", spec, [labels, patch])))
        assert template["metadata"]["labels"][key] == "a"


@pytest.mark.parametrize("kind", KINDS)
def test_type_of_gpu_selects_nodes_by_the_sites_labels(kind: str, spec: str) -> None:
    for template in pod_templates(documents(render(kind, spec))):
        assert template["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100", "pool": "no"}
    for template in pod_templates(documents(render(kind, spec, ["kubernetes.queue=lq"]))):
        affinity = template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (term,) = affinity["nodeSelectorTerms"]  # of several, one would do
        asked = [(one["key"], one["values"]) for one in term["matchExpressions"]]
        assert asked == [("nvidia.com/gpu.product", ["NVIDIA-H100"]), ("pool", ["no"]), ("zone", ["012", "no"])]
        assert "nodeSelector" not in template["spec"]
    with pytest.raises(SpecError, match=r"kubernetes\.gpu_types does not say which nodes have it"):
        render(kind, spec, ["gpu=b200"])


def test_headers_say_that_the_standard_is_not_checked(spec: str) -> None:
    text = render("jobset", spec)
    unchecked = "the result is not checked against the Pod Security Standard restricted."
    assert f"# kubernetes.pod is merged into the pods, and {unchecked}" in text
    assert "# The job ends only when its other containers have ended, too: sidecar." in text
    assert "# Not given: resources.cpus and resources.memory." in text
    assert of_kind(documents(text), "JobSet")
