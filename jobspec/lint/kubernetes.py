"""Rules for Kubernetes manifests: Job, JobSet, PyTorchJob, TrainJob and its runtimes, Service."""

from __future__ import annotations

from collections.abc import Iterator

from jobspec.lint.manifest import Node, script_of
from jobspec.lint.rules import Fault, rule
from jobspec.lint.secrets import GYM, masked, names_secret
from jobspec.lint.shell import Script

QUEUE = "kueue.x-k8s.io/queue-name"

# Ports that every job has which says nothing: PyTorchJob's, torch's.
_DEFAULT_PORTS = ("23456", "29500")


def templates(document: Node) -> Iterator[Node]:
    """The pod templates of an object: mappings with metadata and spec."""
    if document.text("kind") == "PyTorchJob":
        replicas = document.get("spec", "pytorchReplicaSpecs")
        found = [template for _, role in (replicas.items() if replicas else ()) if (template := role.get("template"))]
    elif document.text("kind") == "Pod":
        found = [document]
    elif document.text("kind") == "Job":
        found = [template] if (template := document.get("spec", "template")) else []
    else:  # a JobSet, or a runtime that holds one
        jobs = document.elements("spec", "replicatedJobs")
        jobs += document.elements("spec", "template", "spec", "replicatedJobs")
        found = [template for job in jobs if (template := job.get("template", "spec", "template"))]
    yield from found


def containers(document: Node) -> Iterator[Node]:
    """The containers of all pods, in order."""
    for template in templates(document):
        yield from template.elements("spec", "containers")


def scripts_in(document: Node) -> Iterator[Script]:
    """What the containers start."""
    for container in containers(document):
        script = script_of(container.get("command"), container.get("args"))
        if script:
            yield script


def replicas(document: Node) -> int:
    """How many pods a PyTorchJob has."""
    roles = document.get("spec", "pytorchReplicaSpecs")
    counts = [role.text("replicas") or "1" for _, role in (roles.items() if roles else ())]
    return sum(int(count) for count in counts if count.isdigit())


def gpus(container: Node) -> str:
    """The number of GPUs that a container asks for; empty if none."""
    limits = container.get("resources", "limits")
    return next((value.text() for name, value in limits.items() if name.endswith("/gpu")), "") if limits else ""


def starts(container: Node, *programs: str) -> bool:
    """Whether a container starts one of these programs."""
    script = script_of(container.get("command"), container.get("args"))
    return script is not None and any(command.has(*programs) for command in script.commands)


@rule("https://github.com/kubeflow/trainer/issues/1762")
def workers_without_master(document: Node) -> Iterator[Fault]:
    roles = document.get("spec", "pytorchReplicaSpecs")
    if roles and roles.get("Worker") and not roles.get("Master") and not document.get("spec", "elasticPolicy"):
        reason = "Workers without a Master get neither MASTER_ADDR nor a rank"
        yield Fault(roles.key_place, reason, "make one of them the Master with replicas: 1, or give an elasticPolicy")


@rule("https://github.com/kubeflow/trainer/issues/1790")
def rank_is_that_of_the_node(document: Node) -> Iterator[Fault]:
    if document.text("kind") != "PyTorchJob":
        return
    for container in containers(document):
        several = document.text("spec", "nprocPerNode") not in ("", "1") or gpus(container) not in ("", "1")
        if several and starts(container, "python", "python3") and not starts(container, "torchrun"):
            entry = container.get("command") or container.get("args") or container
            reason = "RANK and WORLD_SIZE of a PyTorchJob are the node's: plain python starts one process a node"
            yield Fault(entry.key_place, reason, "torchrun instead of python; it reads the rest from PET_ variables")


@rule("https://github.com/kubeflow/trainer/pull/1840")
def nproc_per_node_is_text(document: Node) -> Iterator[Fault]:
    given = document.get("spec", "nprocPerNode")
    if document.text("kind") == "PyTorchJob" and given and not given.is_text:
        reason = "nprocPerNode is text: a number is refused by the cluster"
        yield Fault(given.place, reason, f'nprocPerNode: "{given.text()}"')


@rule("https://github.com/kubeflow/trainer/issues/1589")
def restarts_without_end(document: Node) -> Iterator[Fault]:
    spec = document.get("spec")
    if document.text("kind") == "PyTorchJob" and spec and not document.get("spec", "runPolicy", "backoffLimit"):
        policy = document.get("spec", "runPolicy") or spec
        yield Fault(policy.key_place, "a failing job is restarted for ever", "runPolicy: {backoffLimit: 3}")


@rule("https://github.com/kubeflow/trainer/issues/2045")
def exit_code_means_nothing(document: Node) -> Iterator[Fault]:
    roles = document.get("spec", "pytorchReplicaSpecs")
    for _, role in roles.items() if roles else ():
        policy = role.get("restartPolicy")
        if policy and policy.text() == "ExitCode":
            reason = "torchrun exits with 1 whatever happened, and ExitCode takes 1 for a failure that is final"
            yield Fault(policy.place, reason, "restartPolicy: OnFailure with a backoffLimit")


@rule("https://github.com/kubeflow/trainer/issues/1579")
def failed_job_keeps_gpus(document: Node) -> Iterator[Fault]:
    policy = document.get("spec", "runPolicy", "cleanPodPolicy")
    if policy and policy.text() == "None":
        reason = "when one pod fails, the others stay and hold their GPUs"
        yield Fault(policy.place, reason, "cleanPodPolicy: Running")


@rule("https://github.com/kubeflow/trainer/issues/1825")
def half_a_gang_may_start(document: Node) -> Iterator[Fault]:
    least = document.get("spec", "runPolicy", "schedulingPolicy", "minAvailable")
    if least and least.text().isdigit() and int(least.text()) < replicas(document):
        reason = f"{least.text()} of {replicas(document)} pods may start, and wait for the rest while they hold GPUs"
        yield Fault(least.place, reason, f"minAvailable: {replicas(document)}")


@rule("https://github.com/kubernetes-sigs/kueue/issues/2796")
def queue_label_is_inert(document: Node) -> Iterator[Fault]:
    if document.text("kind") == "Pod" or document.get("metadata", "labels", QUEUE):
        return
    for template in templates(document):
        label = template.get("metadata", "labels", QUEUE)
        if label:
            reason = "Kueue reads the queue from the object itself: on its pods the label does nothing"
            yield Fault(label.key_place, reason, f"metadata.labels of the {document.text('kind')}")


@rule("https://github.com/kubeflow/trainer/issues/1797")
def host_network_without_cluster_names(document: Node) -> Iterator[Fault]:
    for template in templates(document):
        own = template.get("spec", "hostNetwork")
        if own and own.text() == "true" and template.text("spec", "dnsPolicy") != "ClusterFirstWithHostNet":
            reason = "with the node's network pods ask the node's name server, which knows no Service and no pod"
            yield Fault(own.place, reason, "dnsPolicy: ClusterFirstWithHostNet")


@rule("https://github.com/kubeflow/trainer/issues/2282")
def host_network_with_a_common_port(document: Node) -> Iterator[Fault]:
    for template in templates(document):
        own = template.get("spec", "hostNetwork")
        if own is None or own.text() != "true":
            continue
        for container in template.elements("spec", "containers"):
            env = {entry.text("name"): entry.text("value") for entry in container.elements("env")}
            ports = {port.text("name"): port.text("containerPort") for port in container.elements("ports")}
            port = env.get("PET_MASTER_PORT") or env.get("MASTER_PORT") or ports.get("pytorchjob-port") or ""
            if port in _DEFAULT_PORTS or (not port and document.text("kind") == "PyTorchJob"):
                reason = "on the node's network two jobs with the same port cannot share a node"
                yield Fault(own.place, reason, "a port of the job's own, and anti-affinity between its pods")


@rule("https://github.com/pytorch/pytorch/issues/108861")
def shared_memory_is_small(document: Node) -> Iterator[Fault]:
    for container in containers(document):
        mounted = any(mount.text("mountPath") == "/dev/shm" for mount in container.elements("volumeMounts"))
        if not mounted and (gpus(container) or starts(container, "torchrun")):
            name = container.get("name") or container
            reason = "/dev/shm of a container has 64 MiB: DataLoader workers and NCCL die of it"
            yield Fault(name.place, reason, "an emptyDir with medium: Memory and a sizeLimit, mounted at /dev/shm")


@rule("https://github.com/pytorch/pytorch/issues/73682")
def names_come_too_late(document: Node) -> Iterator[Fault]:
    selector = document.get("spec", "selector")
    if document.text("kind") != "Service" or document.text("spec", "clusterIP") != "None" or selector is None:
        return
    of_a_job = any(key.rpartition("/")[2] in ("job-name", "jobset-name") for key, _ in selector.items())
    if of_a_job and document.text("spec", "publishNotReadyAddresses") != "true":
        reason = "a pod has no name until it is ready, and waits for the other pods' names to become ready"
        yield Fault(selector.key_place, reason, "publishNotReadyAddresses: true")


@rule("https://github.com/huggingface/accelerate/issues/1918")
def shell_keeps_the_signal(document: Node) -> Iterator[Fault]:
    for container in containers(document):
        script = script_of(container.get("command"), container.get("args"))
        if script is None or len(script.commands) == 1:
            continue
        for command in script.commands:
            if command.has("torchrun", "python", "python3") and command.words[0].value != "exec":
                reason = "the shell is process 1 and does not hand on SIGTERM: the job is killed without a checkpoint"
                yield Fault(script.place(command.words[0]), reason, f"exec {command.words[0].value} …")


@rule("https://github.com/kubeflow/trainer/pull/2307")
def variable_is_reserved(document: Node) -> Iterator[Fault]:
    if document.text("kind") != "TrainJob":
        return
    for entry in document.elements("spec", "trainer", "env"):
        name = entry.get("name")
        if name and name.text().startswith("PET_"):
            reason = f"{name.text()} is set by the trainer: a TrainJob that sets it is refused"
            yield Fault(name.place, reason, "numNodes and numProcPerNode decide it")


@rule(GYM)
def secret_in_manifest(document: Node) -> Iterator[Fault]:
    for container in containers(document):
        for entry in container.elements("env"):
            value = entry.get("value")
            if value and names_secret(entry.text("name")) and value.text():
                reason = f"everybody who may read the object reads the value of {entry.text('name')}"
                yield Fault(masked(value.key_place), reason, "valueFrom: {secretKeyRef: {name: …, key: …}}")
