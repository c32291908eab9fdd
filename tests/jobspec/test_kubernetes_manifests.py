"""Every manifest as its cluster would judge it: strict schemas, and what training in a pod needs."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from jobspec import kubernetes, targets
from jobspec.artifact import load, render
from jobspec.plan import Plan
from jobspec.problems import SpecError
from tests.clusters import KINDS, RIGHT, Manifest, documents, manifests_of, pod_templates

JOBS = Path(__file__).parents[2] / "jobs"
SPECS = [*sorted(JOBS.glob("*.yaml")), *sorted(RIGHT.glob("*.yaml"))]
SCHEMAS = {
    "JobSet": "jobset-v1alpha2.json",
    "PyTorchJob": "pytorchjob-v1.json",
    "TrainJob": "trainjob-v1alpha1.json",
    "TrainingRuntime": "trainingruntime-v1alpha1.json",
}
# Without a schema to be had: the PodGroups of two schedulers.
# Kinds of Kubernetes itself, and of a scheduler.
CORE, WITHOUT_SCHEMA = ("Service", "Job", "NetworkPolicy"), {"PodGroup"}


def cases() -> Iterator[Any]:
    """Every job for every kind that takes it."""
    for spec in SPECS:
        for target in KINDS:
            try:
                plan, text = load(targets.load(target), str(spec)), render(target, str(spec))
            except SpecError:
                continue
            yield pytest.param(plan, documents(text), id=f"{spec.stem}-{target}")


CASES = list(cases())
each_manifest = pytest.mark.parametrize(("plan", "manifests"), CASES)


def test_specs_of_this_test_are_taken_by_the_kinds_that_can() -> None:
    taken = {case.id for case in CASES}
    for name in ("restricted", "privileged", "least"):
        assert {f"kubernetes-{name}-{target}" for target in KINDS} <= taken
    assert {"kubernetes-elastic-pytorchjob", "kubernetes-elastic-indexedjob"} <= taken


@each_manifest
def test_every_object_fits_the_strict_schema_of_its_kind(plan: Plan, manifests: list[Manifest], schemas: Path) -> None:
    for manifest in manifests:
        if manifest["kind"] in SCHEMAS:
            validator(schemas / SCHEMAS[manifest["kind"]]).validate(manifest)
        else:
            assert manifest["kind"] in {*CORE} | WITHOUT_SCHEMA


@lru_cache
def validator(schema: Path) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads(schema.read_text()))


@each_manifest
@pytest.mark.parametrize("version", [kubernetes.OLDEST, kubernetes.NEWEST])
def test_core_objects_and_pods_fit_the_oldest_and_the_newest_kubernetes(
    plan: Plan, manifests: list[Manifest], version: str
) -> None:
    core = [manifest for manifest in manifests if manifest["kind"] in CORE]
    for manifest in [*core, *map(as_pod, pod_templates(manifests))]:
        kubernetes_validate.validate(manifest, version, strict=True)


@each_manifest
def test_every_pod_has_what_training_in_a_pod_needs(plan: Plan, manifests: list[Manifest]) -> None:
    for template in pod_templates(manifests):
        spec = template["spec"]
        (container,) = spec["containers"]
        env = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert len(env) == len(container["env"])
        grace_s = max(120, plan.job.preemption.grace if plan.job.preemption else 0)
        assert spec["terminationGracePeriodSeconds"] == int(env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) + 30 == grace_s
        assert (spec["enableServiceLinks"], spec["automountServiceAccountToken"]) == (False, False)
        istio, linkerd = "sidecar.istio.io/inject", "linkerd.io/inject"
        found = template["metadata"]["annotations"] | template["metadata"]["labels"]
        assert (found[istio], found["istio.io/dataplane-mode"], found[linkerd]) == ("false", "none", "disabled")
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        places = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        assert places["/dev/shm"]["emptyDir"]["medium"] == "Memory"
        assert places[env["HOME"]]["emptyDir"]["sizeLimit"]
        assert re.fullmatch("[0-9]+[MGT]i", places["/dev/shm"]["emptyDir"]["sizeLimit"])
        gpus = container.get("resources", {}).get("limits", {}).get("nvidia.com/gpu")
        assert gpus == (str(plan.job.procs_per_node) if plan.job.device == "cuda" else None)
        if plan.job.kubernetes.security == "restricted":  # as the Pod Security Standard has it
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "runAsNonRoot": True,
                "readOnlyRootFilesystem": True,
            }
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert spec["securityContext"].get("runAsUser") == plan.job.kubernetes.run_as_user  # OpenShift has its own
            assert "emptyDir" in places["/tmp"]


@each_manifest
def test_only_pods_of_the_job_may_connect_to_its_pods(plan: Plan, manifests: list[Manifest]) -> None:
    policies = [manifest["spec"] for manifest in manifests if manifest["kind"] == "NetworkPolicy"]
    assert all(policy["ingress"] == [{"from": [{"podSelector": policy["podSelector"]}]}] for policy in policies)
    labels = [label for policy in policies for label in policy["podSelector"]["matchLabels"].items()]
    assert all(name.endswith(("/job-name", "/jobset-name")) for name, _ in labels)
    jobs = [one["metadata"]["name"] for one in manifests if one["kind"] in {"Job", "JobSet", "PyTorchJob", "TrainJob"}]
    assert [value for _, value in labels] == (jobs if plan.job.kubernetes.network_policy else [])


def test_no_policy_is_written_for_the_network_of_a_node_where_none_holds() -> None:
    kinds = [one["kind"] for one in manifests_of("jobset", "least", "kubernetes.pod={hostNetwork: true}")]
    assert kinds == ["JobSet"]


@each_manifest
def test_queue_is_named_on_the_job_object_alone(plan: Plan, manifests: list[Manifest]) -> None:
    queues = [manifest["metadata"].get("labels", {}).get("kueue.x-k8s.io/queue-name") for manifest in manifests]
    assert queues == [None] * (len(manifests) - 1) + [plan.job.kubernetes.queue]
    assert "queue-name" not in json.dumps(pod_templates(manifests))


def test_hand_written_claim_fits_every_kubernetes_and_the_examples_mount_it() -> None:
    folder = JOBS.parent / "k8s"
    (claim,) = documents((folder / "claims.yaml").read_text())
    for version in (kubernetes.OLDEST, kubernetes.NEWEST):
        kubernetes_validate.validate(claim, version, strict=True)
    mounted = {
        volume["persistentVolumeClaim"]["claimName"]
        for example in folder.glob("*.*.yaml")
        for template in pod_templates(documents(example.read_text()))
        for volume in template["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert mounted == {claim["metadata"]["name"]}
    queue = documents((folder / "queue.yaml").read_text())[-1]["metadata"]
    for example in folder.glob("*.*.yaml"):
        job = documents(example.read_text())[-1]["metadata"]
        assert (job["namespace"], job["labels"]["kueue.x-k8s.io/queue-name"]) == (queue["namespace"], queue["name"])


@pytest.mark.parametrize("target", KINDS)
def test_kubectl_reads_what_pyyaml_reads(target: str, tmp_path: Path) -> None:
    """kubectl's own YAML reader, in Go, without a cluster: kustomize prints what it has read."""
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed (one file: kubernetes.io/docs/tasks/tools)")
    manifests = manifests_of(target, "restricted")
    (tmp_path / "job.yaml").write_text(render(target, str(RIGHT / "kubernetes-restricted.yaml")))
    (tmp_path / "kustomization.yaml").write_text("resources: [job.yaml]\n")
    done = subprocess.run(["kubectl", "kustomize", tmp_path], capture_output=True, check=True)
    by_kind = {manifest["kind"]: manifest for manifest in documents(done.stdout.decode())}
    assert by_kind == {manifest["kind"]: manifest for manifest in manifests}


def as_pod(template: Manifest) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pod", **template["metadata"]},
        "spec": template["spec"],
    }
