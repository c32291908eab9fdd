"""Manifest → the processes that a cluster would start: what operators and the kubelet do, in a few lines.

Sources: training-operator 1.9, pkg/controller.v1/pytorch; kubeflow/trainer 2.3, plugins/torch; JobSet and Job
controllers; Kubernetes' third_party/forked/golang/expansion.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from jobspec.artifact import render

KINDS = ("indexedjob", "jobset", "pytorchjob", "trainjob")
INDEX = "batch.kubernetes.io/job-completion-index"

# Specs that are right.
RIGHT = Path(__file__).parent / "specs" / "ok"

Manifest = dict[str, Any]

# libyaml, of which the readers of kubectl and compose are translations; where it is absent, PyYAML's own.
YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class Process:
    """The container of one pod: the name by which its peers reach it, its words and its environment."""

    name: str
    argv: list[str]
    env: dict[str, str]


def documents(text: str) -> list[Manifest]:
    return [document for document in yaml.load_all(text, YAML) if document is not None]


def manifests_of(target: str, spec: str, *settings: str) -> list[Manifest]:
    """What a target makes of specs/ok/kubernetes-<spec>.yaml."""
    return documents(render(target, str(RIGHT / f"kubernetes-{spec}.yaml"), settings))


def of_kind(manifests: Sequence[Manifest], kind: str) -> Manifest:
    """The one object of a kind."""
    (found,) = (manifest for manifest in manifests if manifest["kind"] == kind)
    return found


def pod_templates(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Every pod template in the manifests."""
    found = []
    for manifest in manifests:
        spec = manifest.get("spec", {})
        if manifest["kind"] == "Job":
            found.append(spec["template"])
        elif manifest["kind"] == "JobSet":
            found += [job["template"]["spec"]["template"] for job in spec["replicatedJobs"]]
        elif manifest["kind"] == "TrainingRuntime":
            found += [job["template"]["spec"]["template"] for job in spec["template"]["spec"]["replicatedJobs"]]
        elif manifest["kind"] == "PyTorchJob":
            found += [replica["template"] for replica in spec["pytorchReplicaSpecs"].values()]
    return found


def processes(
    target: str, manifests: Sequence[Manifest], secrets: Mapping[str, str], addresses: Sequence[str] = ()
) -> list[Process]:
    """Every pod's container as the kubelet starts it, in the order of the pods' numbers; `addresses` are the pods'."""
    replay = {"indexedjob": _indexed_job, "jobset": _jobset, "pytorchjob": _pytorchjob, "trainjob": _trainjob}[target]
    started = []
    for number, (name, template, added) in enumerate(replay(manifests)):
        container = template["spec"]["containers"][0]
        address = addresses[number] if addresses else f"10.0.0.{number + 1}"
        container = {**container, "env": [*container["env"], *added]}
        started.append(Process(name, *words_and_environment(container, template, secrets, address)))
    return started


def words_and_environment(
    container: Manifest, pod: Manifest, secrets: Mapping[str, str], address: str
) -> tuple[list[str], dict[str, str]]:
    """A container's words and variables as the kubelet fills them in; `secrets` are values by key."""
    fields = {**_metadata_fields(pod), "status.podIP": address}
    env = _environment(container.get("env", []), fields, secrets)
    return [expand(word, env) for word in [*container.get("command", []), *container.get("args", [])]], env


def expand(text: str, env: Mapping[str, str]) -> str:
    """`$(NAME)` in a container's words and variables, byte by byte as the kubelet does it."""
    data, out, at = text.encode(), bytearray(), 0
    while at < len(data):
        char, after = data[at : at + 1], data[at + 1 : at + 2]
        if char != b"$" or not after:
            out += char
            at += 1
        elif after == b"$":
            out += b"$"
            at += 2
        elif after == b"(":
            end = data.find(b")", at)
            if end < 0:
                out += b"$("
                at += 2
            else:
                name = data[at + 2 : end].decode()
                out += env.get(name, f"$({name})").encode()
                at = end + 1
        else:
            out += b"$" + chr(after[0]).encode()  # one byte as if it were a character: the kubelet's slip
            at += 2
    return out.decode(errors="surrogateescape")


_Pods = Iterator[tuple[str, Manifest, list[Manifest]]]


def _indexed_job(manifests: Sequence[Manifest]) -> _Pods:
    job, service = of_kind(manifests, "Job"), of_kind(manifests, "Service")
    name, spec = job["metadata"]["name"], job["spec"]
    subdomain = spec["template"]["spec"]["subdomain"]
    assert service["metadata"]["name"] == subdomain
    assert service["metadata"].get("namespace") == job["metadata"].get("namespace")
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert (spec["completionMode"], spec["completions"]) == ("Indexed", spec["parallelism"])
    for index in range(spec["completions"]):
        yield f"{name}-{index}.{subdomain}", *_indexed(spec["template"], index)


def _jobset(manifests: Sequence[Manifest]) -> _Pods:
    jobset = of_kind(manifests, "JobSet")
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert job["completions"] == job["parallelism"]
    yield from _replicated_job(jobset["metadata"]["name"], jobset["spec"], job["completions"])


def _trainjob(manifests: Sequence[Manifest]) -> _Pods:
    job, runtime = of_kind(manifests, "TrainJob"), of_kind(manifests, "TrainingRuntime")
    assert manifests.index(runtime) < manifests.index(job)
    assert job["spec"]["runtimeRef"] == {"kind": "TrainingRuntime", "name": runtime["metadata"]["name"]}
    assert job["metadata"].get("namespace") == runtime["metadata"].get("namespace")
    assert runtime["spec"]["mlPolicy"]["torch"] is not None
    name, trainer = job["metadata"]["name"], job["spec"]["trainer"]  # without it nothing is added
    for pod, template, index in _replicated_job(name, runtime["spec"]["template"]["spec"], trainer["numNodes"]):
        assert [container["name"] for container in template["spec"]["containers"]] == ["node"]
        added = [
            _variable("PET_NNODES", trainer["numNodes"]),
            _variable("PET_NPROC_PER_NODE", trainer["numProcPerNode"]),
            {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}},
            _variable("PET_MASTER_ADDR", f"{name}-node-0-0.{name}"),
            _variable("PET_MASTER_PORT", 29500),
            *index,
        ]
        yield pod, template, added


def _replicated_job(name: str, spec: Manifest, nodes: int) -> _Pods:
    (replicated,) = spec["replicatedJobs"]
    for index in range(nodes):
        yield (
            f"{name}-{replicated['name']}-0-{index}.{name}",
            *_indexed(replicated["template"]["spec"]["template"], index),
        )


def _pytorchjob(manifests: Sequence[Manifest]) -> _Pods:
    job = of_kind(manifests, "PyTorchJob")
    name, spec = job["metadata"]["name"], job["spec"]
    replicas, elastic = spec["pytorchReplicaSpecs"], spec.get("elasticPolicy")
    total = sum(replica["replicas"] for replica in replicas.values())
    per_node = spec["nprocPerNode"]
    for kind in ("Master", "Worker"):
        for index in range(replicas.get(kind, {"replicas": 0})["replicas"]):
            node = index + (kind == "Worker")
            template = replicas[kind]["template"]
            port = _port(replicas["Worker" if elastic else "Master"]["template"])
            added = [_variable("PYTHONUNBUFFERED", 1)]
            if "Master" in replicas:
                added += [
                    _variable("MASTER_PORT", port),
                    _variable("PET_MASTER_PORT", port),
                    _variable("MASTER_ADDR", f"{name}-master-0"),
                    _variable("PET_MASTER_ADDR", f"{name}-master-0"),
                    _variable("WORLD_SIZE", total * (1 if per_node == "auto" else int(per_node))),
                    _variable("RANK", node),
                    _variable("PET_NODE_RANK", node),
                ]
            added.append(_variable("PET_NPROC_PER_NODE", per_node))
            if elastic:
                added += [
                    _variable("PET_RDZV_ENDPOINT", f"{name}-worker-0:{port}"),
                    _variable("PET_RDZV_BACKEND", elastic["rdzvBackend"]),
                    _variable("PET_NNODES", f"{elastic['minReplicas']}:{elastic['maxReplicas']}"),
                ]
            else:
                added.append(_variable("PET_NNODES", total))
            labels = {**template["metadata"]["labels"], "training.kubeflow.org/replica-index": str(index)}
            yield f"{name}-{kind.lower()}-{index}", {**template, "metadata": {"labels": labels}}, added


def _port(template: Manifest) -> int:
    (container,) = (one for one in template["spec"]["containers"] if one["name"] == "pytorch")
    (port,) = (one["containerPort"] for one in container["ports"] if one["name"] == "pytorchjob-port")
    return int(port)


def _variable(name: str, value: object) -> Manifest:
    return {"name": name, "value": str(value)}


def _indexed(template: Manifest, index: int) -> tuple[Manifest, list[Manifest]]:
    """A pod of an Indexed Job, and the variable that the Job controller adds to its containers."""
    metadata = template["metadata"]
    numbered = {**template, "metadata": {**metadata, "annotations": {**metadata["annotations"], INDEX: str(index)}}}
    field = {"fieldPath": f"metadata.annotations['{INDEX}']"}
    return numbered, [{"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": field}}]


def _metadata_fields(template: Manifest) -> dict[str, str]:
    """The values of a pod's metadata by field path."""
    names = {f"metadata.{key}": template["metadata"].get(key, "") for key in ("name", "namespace")}
    return names | {
        f"metadata.{section}['{key}']": value
        for section in ("labels", "annotations")
        for key, value in template["metadata"].get(section, {}).items()
    }


def _environment(
    variables: Sequence[Manifest], fields: Mapping[str, str], secrets: Mapping[str, str]
) -> dict[str, str]:
    """The variables in their order: a later one wins, and a value may name earlier ones."""
    env: dict[str, str] = {}
    for variable in variables:
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            env[variable["name"]] = fields[source["fieldRef"]["fieldPath"]]
        elif "secretKeyRef" in source:
            env[variable["name"]] = secrets[source["secretKeyRef"]["key"]]
        else:
            env[variable["name"]] = expand(variable.get("value", ""), env)  # the API server drops an empty one
    return env
