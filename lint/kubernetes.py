"""Rules for manifests (Pod, Job, JobSet, PyTorchJob, TrainJob and its runtimes, Service) and compose files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from jobspec.problems import masked
from lint.manifest import Node
from lint.pods import Manifest, templates, variables
from lint.rules import Fault
from lint.sbatch import number
from lint.secrets import is_secret
from lint.tasks import idle

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAMES_OF_VERSIONS = """
    Job=batch/v1 Pod=v1 Service=v1 PyTorchJob=kubeflow.org/v1 TrainJob=trainer.kubeflow.org/v1alpha1
    JobSet=jobset.x-k8s.io/v1alpha2
"""
_VERSIONS = dict(pair.split("=") for pair in _NAMES_OF_VERSIONS.split())
# What the training operator sets in every container; pkg/controller.v1/pytorch/envvar.go.
_BY_OPERATOR = """
    MASTER_ADDR MASTER_PORT RANK WORLD_SIZE PET_MASTER_ADDR PET_MASTER_PORT PET_NNODES PET_NODE_RANK PET_NPROC_PER_NODE
"""
_ADDRESS = re.compile(r"([a-z0-9][-a-z0-9]*)(?:\.([a-z0-9][-a-z0-9]*))?(?:\.([a-z0-9][-a-z0-9]*)\.svc[\w.]*)?$")
_ADDRESSES = ("MASTER_ADDR", "PET_MASTER_ADDR")
_MEETS = ("master-addr", "rdzv-endpoint")


def _is(document: Node, *kinds: str) -> bool:
    """Return True for one of some kinds; a Job of another API, such as Volcano's, is none."""
    kind = document.text("kind")
    return kind in kinds and not (kind == "Job" and document.text("apiVersion").partition("/")[0] not in ("batch", ""))


def api_refuses_it(manifest: Manifest) -> Iterator[Fault]:
    for document in manifest.documents:
        kind, version = document.text("kind"), document.get("apiVersion")
        known = _VERSIONS.get(kind, "")
        if known and version and version.text() != known and "volcano" not in version.text():
            yield Fault(version.place, f"{kind} is not in {version.text()}", f"apiVersion: {known}")
        for template, _ in templates(document):
            policy, label = template.get("spec", "restartPolicy"), template.get("spec", "subdomain")
            named, place = policy.text() if policy else "", policy or template.get("spec")
            if place and _is(document, "Job") and named not in ("Never", "OnFailure"):
                reason = f"a Job has the restart policies Never and OnFailure, not {named or 'Always, the default'}"
                yield Fault(place.key_place, reason, "restartPolicy: Never")
            if label and not _LABEL.fullmatch(label.text()):
                reason = f"a subdomain is a DNS label, which {label.text()} is not"
                yield Fault(label.place, reason, "the Service's name")
        yield from _of_pytorchjob(document) if kind == "PyTorchJob" else ()
        yield from _of_schema(document) if _is(document, "Job", "Pod") else ()
    for container in manifest.containers:
        for key, value in container.node.items("resources", "requests"):
            if key.endswith("/gpu") and container.node.text("resources", "limits", key) != value.text():
                fix = f"limits: {{{key}: {value.text()}}}"
                yield Fault(value.key_place, f"{key} is requested without an equal limit", fix)
        for name, _, node in variables(container.node) if not container.is_service else ():
            if node.is_number_or_switch:
                reason = f"the value of {name} is a number or boolean in YAML, but must be text"
                yield Fault(node.place, reason, f'value: "{node.text()}"')
            if _is(container.document, "TrainJob") and name.startswith("PET_"):
                reason = f"{name} is set by Kubeflow Trainer: a TrainJob that sets it is refused"
                yield Fault(node.place, reason, "leave it out; numNodes and numProcPerNode decide it")


def _of_pytorchjob(document: Node) -> Iterator[Fault]:
    given = document.get("spec", "nprocPerNode")
    if given and given.is_number_or_switch:
        fix = f'nprocPerNode: "{given.text()}"'
        yield Fault(given.place, "nprocPerNode must be a string: the cluster refuses a number", fix)
    for _, role in document.items("spec", "pytorchReplicaSpecs"):
        count, own = role.get("replicas"), role.elements("template", "spec", "containers")
        if count and count.text() == "0":
            yield Fault(count.place, "the operator makes a pod even for 0 Workers", "leave the Workers out")
        if own and all(container.text("name") not in ("pytorch", "") for container in own):
            reason = "the operator refuses a PyTorchJob without a container called pytorch"
            yield Fault((own[0].get("name") or own[0]).place, reason, "name: pytorch")


def _of_schema(document: Node) -> Iterator[Fault]:
    """Yield the first key that Kubernetes does not know; only where kubernetes-validate is installed."""
    try:
        import kubernetes_validate

        kubernetes_validate.validate(document.plain(), kubernetes_validate.latest_version(), strict=True)
    except Exception as error:  # not installed, or a finding, or values that are none of Kubernetes
        message = getattr(error, "message", "")
        names = re.findall(r"'(\w+)'", message) if "dditional properties" in message else []
        key = document.get(*getattr(error, "path", ()), names[0]) if names else None
        if key:
            yield Fault(key.key_place, f"Kubernetes knows no key {names[0]} here", "remove it, or see kubectl explain")


def gpus_stay_idle(manifest: Manifest) -> Iterator[Fault]:
    """Of the processes of an object; what a launcher is told is compared in tasks.py."""
    for container in manifest.containers:
        node, gpus = container.node, container.gpus
        told = container.document.get("spec", "nprocPerNode") or node.get("numProcPerNode")
        first = next((launch for launch in container.launches if launch.trains), None)
        kind = first.kind if first and "nproc-per-node" not in first.options else ""
        processes, place = "", node.place
        if told and (kind == "torchrun" or node.get("numProcPerNode")):
            processes, place = told.text(), told.place
        elif _is(container.document, "PyTorchJob") and kind in ("python", "torchrun"):
            processes, place = "1", (node.get("command") or node.get("args") or node).key_place
        count = number(processes)
        if count and gpus and count != gpus:
            yield Fault(place, idle(count, gpus, "pod"), f"torchrun --nproc-per-node={gpus}")


def nnodes_are_not_the_nodes(manifest: Manifest) -> Iterator[Fault]:
    for container in (each for each in manifest.containers if each.document.get("spec", "elasticPolicy")):
        for launch in (each for each in container.launches if number(each.value("nnodes"))):
            reason = "--nnodes wins over what the operator says in PET_NNODES: elasticPolicy is ignored"
            yield Fault(container.script.place(launch.options["nnodes"].text), reason, "leave --nnodes out")


def name_does_not_resolve(manifest: Manifest) -> Iterator[Fault]:
    metadata = [each.get("metadata") for each in manifest.documents if _is(each, "Service")]
    services = {(each.text("name"), each.text("namespace")) for each in metadata if each}
    for container in (each for each in manifest.containers if _is(each.document, "Job")):
        job, subdomain = container.document.get("metadata"), container.template.text("spec", "subdomain")
        given = [(value or "", node.place) for name, value, node in variables(container.node) if name in _ADDRESSES]
        options = [each.options[name] for each in container.launches for name in _MEETS if name in each.options]
        for value, place in given + [(each.value, container.script.place(each.text)) for each in options]:
            meant = _ADDRESS.match(value.partition(":")[0])
            if not job or not meant or meant[1] != f"{job.text('name')}-0":
                continue
            if not subdomain or meant[2] != subdomain:
                why = f"the pods' subdomain is {subdomain}" if subdomain else "the pods have no subdomain"
                yield Fault(place, f"{value} does not resolve: {why}")
            elif services and (meant[2], job.text("namespace")) not in services:
                reason = f"{value} does not resolve: no Service {meant[2]} is here in the namespace of the pods"
                yield Fault(place, reason)


def shared_memory_is_small(manifest: Manifest) -> Iterator[Fault]:
    shared = any(document.says(r"\bhostIPC\b") for document in manifest.documents)
    for container in manifest.containers if not shared else ():
        node, agents = container.node, [x for x in container.launches if x.is_agent or x.kind == "deepspeed"]
        mounted = any(mount.text("mountPath") == "/dev/shm" for mount in node.elements("volumeMounts"))
        mounted = mounted or node.get("shm_size") is not None or node.text("ipc") in ("host", "shareable")
        one = any(launch.value("nproc-per-node") == "1" for launch in agents)
        if agents and not mounted and (not one if container.is_service else (container.gpus or 0) > 1):
            reason = "/dev/shm of a container has 64 MiB, too little for NCCL between its processes"
            yield Fault(node.key_place if container.is_service else (node.get("name") or node).place, reason)


def shell_keeps_the_signal(manifest: Manifest) -> Iterator[Fault]:
    for container in manifest.containers:
        script, found = container.script, container.launches
        trained = [launch for launch in found if launch.is_agent or launch.kind == "deepspeed"]
        for last in trained[-1:] if script.shell and not container.is_service else ():
            plain = found[-1] is last and not last.command.background and last.command.after not in ("|", "||")
            keeps = not plain or (script.shell != "bash" and len(found) > 1)
            if keeps and last.command.words[0].value != "exec":
                reason = "the shell is process 1 and does not hand on SIGTERM: the job is killed without a checkpoint"
                yield Fault(script.place(last.text), reason)


def failure_is_not_handled(manifest: Manifest) -> Iterator[Fault]:
    for document in (each for each in manifest.documents if _is(each, "PyTorchJob")):
        roles = [role for _, role in document.items("spec", "pytorchReplicaSpecs")]
        policies = {policy.text(): policy for role in roles if (policy := role.get("restartPolicy"))}
        place = document.get("spec", "runPolicy") or document.get("spec")
        if "ExitCode" in policies:
            reason = "torchrun exits with 1 after any failure, and ExitCode restarts no pod that exits with 1"
            yield Fault(policies["ExitCode"].place, reason, "restartPolicy: OnFailure with a backoffLimit")
        elif (
            place
            and roles
            and not place.get("backoffLimit")
            and (not policies or {"OnFailure", "Always"} & set(policies))
        ):
            yield Fault(place.key_place, "a failing job is restarted forever", "runPolicy: {backoffLimit: 3}")


def variable_is_the_operators(manifest: Manifest) -> Iterator[Fault]:
    for container in (each for each in manifest.containers if _is(each.document, "PyTorchJob")):
        for entry in container.node.elements("env"):
            name = entry.get("name")
            if name and name.text() in _BY_OPERATOR.split():
                reason = f"the operator adds its own {name.text()} to each pod, and the operator's value wins"
                yield Fault(name.place, reason)


def secret_in_file(manifest: Manifest) -> Iterator[Fault]:
    for container in manifest.containers:
        for name, value, node in variables(container.node):
            if is_secret(name, value or ""):
                fix = f"{name}: ${{{name}:?}} takes the value from the shell that runs docker compose"
                place = replace(node.key_place, length=min(len(name), node.key_place.length))
                reason = f"the value of {name} is in the file, and so in each copy of it"
                yield Fault(masked(place), reason, fix if container.is_service else "")
