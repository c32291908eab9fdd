"""Rules for manifests (Pod, Job, JobSet, PyTorchJob, TrainJob and its runtimes, Service) and compose files."""

import re
from collections.abc import Iterator
from dataclasses import replace

from jobspec.problems import masked
from lint.manifest import Node
from lint.pods import Manifest, templates, variables
from lint.rules import Fault
from lint.sbatch import number
from lint.secrets import is_secret
from lint.slurm import idle

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_HOST = re.compile(r"([\w-]+)\.?([\w-]*)[\w.-]*")
_ADDRESSES = ("MASTER_ADDR", "PET_MASTER_ADDR")
_MEETS = ("master-addr", "rdzv-endpoint")


_NAMES_OF_VERSIONS = """
    Job=batch/v1 Pod=v1 Service=v1 PyTorchJob=kubeflow.org/v1 TrainJob=trainer.kubeflow.org/v1alpha1
    JobSet=jobset.x-k8s.io/v1alpha2
"""
_VERSIONS = dict(pair.split("=") for pair in _NAMES_OF_VERSIONS.split())


def _is_job(document: Node) -> bool:
    """Return True for a Job of Kubernetes; one of another API, such as Volcano's, is none."""
    return document.text("kind") == "Job" and document.text("apiVersion").partition("/")[0] in ("batch", "")


def api_refuses_it(manifest: Manifest) -> Iterator[Fault]:
    for document in manifest.documents:
        kind, version = document.text("kind"), document.get("apiVersion")
        known = _VERSIONS.get(kind, "")
        if known and version and version.text() != known and "volcano" not in version.text():
            yield Fault(version.place, f"{kind} is not in {version.text()}", f"apiVersion: {known}")
        for template, _ in templates(document):
            label, policy = template.get("spec", "subdomain"), template.get("spec", "restartPolicy")
            named, place = policy.text() if policy else "", policy or template.get("spec")
            if label and not _LABEL.fullmatch(label.text()):
                reason = f"a subdomain is a DNS label, which {label.text()} is not"
                yield Fault(label.place, reason, "the Service's name")
            if place and _is_job(document) and named not in ("Never", "OnFailure"):
                reason = f"a Job has the restart policies Never and OnFailure, not {named or 'Always, the default'}"
                yield Fault(place.key_place, reason, "restartPolicy: Never")
        for _, role in document.items("spec", "pytorchReplicaSpecs"):
            count = role.get("replicas")
            if count and count.text() == "0":
                yield Fault(count.place, "the operator makes a pod even for 0 Workers", "leave the Workers out")
        if _is_job(document) or kind == "Pod":
            yield from _of_schema(document)
    for container in manifest.containers:
        for name, asked in container.node.items("resources", "requests"):
            if name.endswith("/gpu") and container.node.text("resources", "limits", name) != asked.text():
                fix = f"limits: {{{name}: {asked.text()}}}"
                yield Fault(asked.key_place, f"{name} is requested without an equal limit", fix)
        for name, _, node in variables(container.node) if container.script.unit == "pod" else ():
            if node.is_number_or_switch:
                reason = f"the value of {name} is a number or boolean in YAML, but must be text"
                yield Fault(node.place, reason, f'value: "{node.text()}"')


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
        elif container.document.text("kind") == "PyTorchJob" and kind in ("python", "torchrun"):
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
    metadata = [each.get("metadata") for each in manifest.documents if each.text("kind") == "Service"]
    services = {(each.text("name"), each.text("namespace")) for each in metadata if each}
    for container in (each for each in manifest.containers if _is_job(each.document)):
        job, subdomain = container.document.get("metadata"), container.template.text("spec", "subdomain")
        given = [(value or "", node.place) for name, value, node in variables(container.node) if name in _ADDRESSES]
        options = [each.options[name] for each in container.launches for name in _MEETS if name in each.options]
        given += [(option.value, container.script.place(option.text)) for option in options]
        for value, place in given:
            meant = _HOST.fullmatch(value.partition(":")[0])
            if not job or not meant or meant[1] != f"{job.text('name')}-0":
                continue
            if not subdomain or meant[2] != subdomain:
                why = f"the pods' subdomain is {subdomain}" if subdomain else "the pods have no subdomain"
                yield Fault(place, f"{value} does not resolve: {why}")
            elif services and (subdomain, job.text("namespace")) not in services:
                why = f"no Service {subdomain} is here in the namespace of the pods"
                yield Fault(place, f"{value} does not resolve: {why}")


def failure_is_not_handled(manifest: Manifest) -> Iterator[Fault]:
    for document in (each for each in manifest.documents if each.text("kind") == "PyTorchJob"):
        roles = [role for _, role in document.items("spec", "pytorchReplicaSpecs")]
        policies = {policy for role in roles if (policy := role.text("restartPolicy"))}
        place = document.get("spec", "runPolicy") or document.get("spec")
        restarts = roles and (not policies or {"OnFailure", "Always"} & policies)
        if place and restarts and not place.get("backoffLimit"):
            yield Fault(place.key_place, "a failing job is restarted forever")


def secret_in_file(manifest: Manifest) -> Iterator[Fault]:
    for container in manifest.containers:
        for name, value, node in variables(container.node):
            if is_secret(name, value or ""):
                fix = f"{name}: ${{{name}:?}} takes the value from the shell that runs docker compose"
                place = replace(node.key_place, length=min(len(name), node.key_place.length))
                reason = f"the value of {name} is in the file, and so in each copy of it"
                yield Fault(masked(place), reason, fix if container.script.unit == "service" else "")
