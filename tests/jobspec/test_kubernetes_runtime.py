"""A TrainJob against a runtime of the cluster: all that the pod of our own runtime says and a TrainJob may say."""

import json
from pathlib import Path
from typing import Any

import jsonschema

from tests.clusters import manifests_of, pod_templates

# What `restricted` asks for and a TrainJob cannot change, or does without.
SETTINGS = (
    "max_restarts=0",
    "preemption=null",
    "kubernetes.priority_class=null",
    "kubernetes.scheduler=null",
    "kubernetes.image_pull_policy=null",
)
RUNTIMES = {"restartPolicy", "enableServiceLinks", "automountServiceAccountToken"}


def test_trainjob_says_itself_what_the_pod_of_our_own_runtime_says(schemas: Path) -> None:
    (own,) = pod_templates(manifests_of("trainjob", "restricted", *SETTINGS))
    _, job = manifests_of("trainjob", "restricted", *SETTINGS, "kubernetes.runtime=torch-distributed")
    jsonschema.Draft202012Validator(json.loads((schemas / "trainjob-v1alpha1.json").read_text())).validate(job)

    assert job["spec"]["runtimeRef"] == {"name": "torch-distributed"}
    (patch,) = job["spec"]["runtimePatches"]
    (replicated,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert replicated["name"] == "node"
    pod: dict[str, Any] = replicated["template"]["spec"]["template"]
    assert pod["metadata"] == own["metadata"]
    (container,), (whole,) = pod["spec"].pop("containers"), own["spec"].pop("containers")
    # The API server takes the name of a volume as the key of its mount here: each volume is mounted once.
    assert [one["name"] for one in container["volumeMounts"]] == [one["name"] for one in pod["spec"]["volumes"]]
    assert mounted(container, pod["spec"]) == mounted(whole, own["spec"])
    assert {**pod["spec"], **{key: own["spec"][key] for key in RUNTIMES}} == own["spec"]

    trainer = job["spec"]["trainer"]
    assert (trainer.pop("numNodes"), trainer.pop("numProcPerNode")) == (3, 8)
    resources = {"resources": trainer.pop("resourcesPerNode")}
    assert whole.pop("terminationMessagePolicy")  # which no patch of a TrainJob can set
    assert {**container, **trainer, **resources} == whole


def mounted(container: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    """Take volumes and mounts out; return what is mounted by its place, without names, and without HOME's subPath."""
    volumes = {one.pop("name"): one for one in spec.pop("volumes")}
    mounts = {one["mountPath"]: (one, volumes[one.pop("name")]) for one in container.pop("volumeMounts")}
    mounts["/tmp"][0].pop("subPath", None)
    return mounts


def test_the_runtime_may_be_one_of_the_namespace() -> None:
    _, job = manifests_of("trainjob", "least", "kubernetes.runtime=TrainingRuntime/ours")
    assert job["spec"]["runtimeRef"] == {"kind": "TrainingRuntime", "name": "ours"}


def test_image_may_be_the_runtimes(tmp_path: Path) -> None:
    _, job = manifests_of("trainjob", "least", "image=null", "kubernetes.runtime=torch-distributed")
    assert "image" not in job["spec"]["trainer"]
