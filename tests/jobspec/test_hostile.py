"""Hostile text in every field: it arrives byte for byte or is refused at its place, and nothing of it is run.

On every target, as its platform reads the artifact: scripts are run by bash, manifests and compose files are read as
the kubelet and compose do.  `make test` tries 20 jobs, `make test-all` 300, --hypothesis-profile=fuzz 10,000.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from jobspec import targets
from jobspec.artifact import plan_of, text_of
from jobspec.problems import SpecError
from tests.clusters import KINDS, Manifest, documents, pod_templates, processes
from tests.compose import read
from tests.hostile import CANARY, Hostile, Spec, jobs, some_lines
from tests.slurm import NVIDIA_SMI, RECORDER, Call, Cluster, directives

# Whether what the spec says has arrived: by artifact, job, and the value of its secrets.
Check = Callable[[str, Hostile, str], None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the scripts run; torchrun and python3 write down how they were called."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "torchrun").write_text(RECORDER.format(file=folder / "call"))
    (folder / "torchrun").chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def checks(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Check]:
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    cluster.install_recorder("torchrun")
    cluster.install_recorder("python3")
    cluster.install("nvidia-smi", NVIDIA_SMI)
    return {
        "torchrun": lambda *arguments: check_script(folder, *arguments),
        "slurm": lambda *arguments: check_batch_script(cluster, *arguments),
        "compose": check_compose_file,
        **{kind: lambda *arguments, kind=kind: check_manifests(kind, *arguments) for kind in KINDS},
    }


@pytest.mark.timeout(7200)  # 10,000 of them
@pytest.mark.parametrize("number", [20, pytest.param(max(300, settings().max_examples), marks=pytest.mark.slow)])
def test_text_arrives_byte_for_byte_or_is_refused_where_it_stands(checks: Mapping[str, Check], number: int) -> None:
    @settings(max_examples=number, suppress_health_check=[HealthCheck.too_slow])
    @given(job=jobs(), secret=some_lines)
    def check(job: Hostile, secret: str) -> None:
        arrives_or_is_refused(checks, job, secret)

    check()


def arrives_or_is_refused(checks: Mapping[str, Check], job: Hostile, secret: str) -> None:
    spec = job.parsed()
    for target in targets.names():
        try:
            plan = plan_of(spec, targets.load(target))
        except SpecError as error:
            assert job.is_explained_by(error, spec), (target, str(error))
        else:
            checks[target](text_of(plan, target, "command", "file"), job, secret)


def check_script(folder: Path, script: str, job: Hostile, secret: str) -> None:
    env = {
        # The script starts python3: a shim of pyenv is a bash, which as root drops PS4.
        "PATH": f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "NODE_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        **job.secrets(secret),
    }
    subprocess.run(["bash"], input=script.encode(), cwd=folder, env=env, check=True)
    call = Call.read(folder / "call")
    assert job.arrives(call.argv, call.env, secret)
    assert not (folder / CANARY).exists()


def check_batch_script(cluster: Cluster, script: str, job: Hostile, secret: str) -> None:
    spec, asked = job.spec["slurm"], directives(script)
    keys = ("partition", "account", "qos", "reservation", "constraint", "array")
    wanted = {key: spec[key] for key in keys if key in spec} | {"job-name": job.spec["name"], **spec["options"]}
    assert wanted == {name: asked.get(name) for name in wanted}

    cluster.nodes = ("n1", "n2")[: job.spec["nodes"]]
    # This machine may allow less, and may have no such port.
    port = cluster.folder / "infiniband" / "hca" / "ports" / "1"
    (port / "gids").mkdir(parents=True, exist_ok=True)
    for name, value in {"state": "4: ACTIVE", "rate": "400 Gb/sec", "gids/0": "fe80:1"}.items():
        (port / name).write_text(f"{value}\n")
    script = script.replace("$(ulimit -l)", "unlimited").replace("/sys/class", str(cluster.folder))
    status, out = cluster.run(script, SLURM_ARRAY_TASK_ID="0", SLURM_ARRAY_JOB_ID="1", **job.secrets(secret))
    assert status == 0, out
    calls = cluster.calls()
    assert len(calls) == job.spec["nodes"] * (job.spec["procs_per_node"] if spec["launcher"] == "srun" else 1)
    for call in calls.values():
        assert job.arrives(call.argv, call.env, secret)
    if spec["runtime"] != "none":
        words = cluster.sruns()[-1] if spec["runtime"] == "pyxis" else cluster.container()
        (mount,) = job.spec["mounts"]
        oci = spec["runtime"] in ("docker", "podman")
        whole = f"source={mount['source']},target={mount['path']}" if oci else f"{mount['source']}:{mount['path']}"
        assert [word for word in words if word.endswith(whole)]
        assert [word for word in words if word.endswith(job.spec["image"].rpartition("/")[2])]
    assert not (cluster.folder / CANARY).exists()


def check_compose_file(artifact: str, job: Hostile, secret: str) -> None:
    # What the shell of the person has must not get into any text.
    found = read(artifact, {"A": "of the shell", "HOME": "/of/the/shell", **job.secrets(secret)})
    assert found["name"] == job.spec["compose"]["project"]
    for service in found["services"].values():
        words = [*service["entrypoint"], *service["command"]]
        assert job.arrives(words, service["environment"], secret)
        (volume,), (mount,) = service["volumes"], job.spec["mounts"]
        assert (volume["source"], volume["target"]) == (mount["source"], mount["path"])
        assert service["image"] == job.spec["image"]


def check_manifests(target: str, artifact: str, job: Hostile, secret: str) -> None:
    manifests = documents(artifact)
    for process in processes(target, manifests, job.secrets(secret)):
        assert job.arrives(process.argv, process.env, secret)
    for template in pod_templates(manifests):
        assert told_by_pod(template, job.spec) == wanted_of_pod(job.spec)
    top, kubernetes = manifests[-1]["metadata"], job.spec["kubernetes"]
    assert (top["name"], top["namespace"]) == (job.spec["name"], kubernetes["namespace"])
    assert top["labels"]["kueue.x-k8s.io/queue-name"] == kubernetes["queue"]


def told_by_pod(template: Manifest, spec: Spec) -> dict[str, Any]:
    """What a pod template says where the spec's text has to be."""
    metadata, pod = template["metadata"], template["spec"]
    (container,) = pod["containers"]
    sources = [one["valueFrom"] for one in container["env"] if "valueFrom" in one]
    (secret,) = (one["secretKeyRef"] for one in sources if "secretKeyRef" in one)
    (toleration,) = pod["tolerations"]
    # With a queue: what Kueue writes is in nodeSelector.
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return {
        "image": container["image"],
        "mount": (pod["volumes"][-1]["hostPath"]["path"], container["volumeMounts"][-1]["mountPath"]),
        "devices": set(container["resources"]["limits"]) - {"cpu", "memory"},
        "secret": (secret["name"], [secret["key"]]),
        "priority_class": pod["priorityClassName"],
        "scheduler": pod["schedulerName"],
        "service_account": pod["serviceAccountName"],
        "image_pull_secrets": [one["name"] for one in pod["imagePullSecrets"]],
        "node_selector": {one["key"]: value for one in term["matchExpressions"] for value in one["values"]},
        "toleration": (toleration["key"], toleration["value"]),
        "labels": {key: metadata["labels"].get(key) for key in spec["kubernetes"]["labels"]},
        "annotations": {key: metadata["annotations"].get(key) for key in spec["kubernetes"]["annotations"]},
    }


def wanted_of_pod(spec: Spec) -> dict[str, Any]:
    kubernetes, (mount,) = spec["kubernetes"], spec["mounts"]
    (toleration,) = kubernetes["tolerations"]
    same = ("priority_class", "scheduler", "service_account", "image_pull_secrets", "node_selector", "labels")
    return {
        "image": spec["image"],
        "mount": (mount["source"], mount["path"]),
        "devices": {kubernetes["gpu_resource"], *([kubernetes["rdma_resource"]] if spec["resources"]["rdma"] else [])},
        "secret": (kubernetes["secret"], spec["secrets"]),
        "toleration": (toleration["key"], toleration["value"]),
        **{key: kubernetes[key] for key in (*same, "annotations")},
    }
