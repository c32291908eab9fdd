"""Rules for the PyTorchJob of Kubeflow's training operator."""

from __future__ import annotations

from collections.abc import Iterator

from lint.lexer import TORCHRUN
from lint.manifest import Node
from lint.pods import containers, gpus, roles, starts
from lint.rules import Fault, number, rule
from train.config import nearest

# What the operator sets in every container; pkg/controller.v1/pytorch/envvar.go.
_SET_BY_OPERATOR = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "PET_NNODES",
    "PET_NODE_RANK",
    "PET_NPROC_PER_NODE",
)


def replicas(document: Node) -> int:
    """Return how many pods a PyTorchJob has."""
    return sum(number(role.text("replicas") or "1") or 0 for _, role in roles(document))


@rule("https://github.com/kubeflow/trainer/issues/1762")
def workers_without_master(document: Node) -> Iterator[Fault]:
    specs = document.get("spec", "pytorchReplicaSpecs")
    if specs and specs.get("Worker") and not specs.get("Master") and not document.get("spec", "elasticPolicy"):
        reason = "Workers without a Master get neither MASTER_ADDR nor a rank"
        yield Fault(specs.key_place, reason, "make one of them the Master with replicas: 1, or give an elasticPolicy")


@rule("https://github.com/kubeflow/trainer/issues/1790")
def rank_is_that_of_the_node(document: Node) -> Iterator[Fault]:
    if document.text("kind") != "PyTorchJob":
        return
    for container in containers(document):
        if container.text("name") != "pytorch":
            continue  # a sidecar does not train
        several = document.text("spec", "nprocPerNode") not in ("", "1") or gpus(container) not in ("", "1")
        if several and starts(container, "python", "python3") and not starts(container, *TORCHRUN):
            entry = container.get("command") or container.get("args") or container
            reason = (
                "in a PyTorchJob RANK and WORLD_SIZE count nodes: plain python starts one process per node, on one GPU"
            )
            yield Fault(
                entry.key_place,
                reason,
                "start the script with torchrun, which reads the number of nodes and its rank from PET_ variables",
            )


@rule("https://github.com/kubeflow/trainer/blob/v1.9.0/pkg/webhooks/pytorch/pytorchjob_webhook.go")
def container_is_called_pytorch(document: Node) -> Iterator[Fault]:
    for _, role in roles(document):
        named = [container.get("name") for container in role.elements("template", "spec", "containers")]
        names = [name for name in named if name]
        if names and all(name.text() != "pytorch" for name in names):
            reason = "the operator refuses a PyTorchJob without a container called pytorch"
            yield Fault(names[0].place, reason, "name: pytorch")


@rule("https://github.com/kubeflow/trainer/pull/1840")
def nproc_per_node_is_text(document: Node) -> Iterator[Fault]:
    given = document.get("spec", "nprocPerNode")
    if document.text("kind") == "PyTorchJob" and given and not given.is_text:
        reason = "nprocPerNode must be a string: the cluster refuses a number"
        yield Fault(given.place, reason, f'nprocPerNode: "{given.text()}"')


@rule("https://github.com/kubeflow/trainer/issues/1589")
def restarts_without_end(document: Node) -> Iterator[Fault]:
    spec = document.get("spec")
    if document.text("kind") != "PyTorchJob" or spec is None or document.get("spec", "runPolicy", "backoffLimit"):
        return
    if any(role.text("restartPolicy") != "Never" for _, role in roles(document)):
        policy = document.get("spec", "runPolicy") or spec
        yield Fault(policy.key_place, "a failing job is restarted forever", "runPolicy: {backoffLimit: 3}")


@rule("https://github.com/kubeflow/trainer/issues/2045")
def exit_code_means_nothing(document: Node) -> Iterator[Fault]:
    for _, role in roles(document):
        policy = role.get("restartPolicy")
        if policy and policy.text() == "ExitCode":
            reason = "torchrun exits with 1 after any failure, and ExitCode restarts no pod that exits with 1"
            yield Fault(policy.place, reason, "restartPolicy: OnFailure with a backoffLimit")


@rule("https://github.com/kubeflow/pytorch-operator/pull/288")
def failed_job_keeps_gpus(document: Node) -> Iterator[Fault]:
    policy = document.get("spec", "runPolicy", "cleanPodPolicy")
    if policy and policy.text() == "None":
        reason = "when one pod fails, the others stay and hold their GPUs"
        yield Fault(policy.place, reason, "cleanPodPolicy: Running")


@rule("https://github.com/kubeflow/trainer/issues/1825")
def half_a_gang_may_start(document: Node) -> Iterator[Fault]:
    least = document.get("spec", "runPolicy", "schedulingPolicy", "minAvailable")
    pods = number(least.text()) if least else None
    if least and pods is not None and pods < replicas(document):
        reason = (
            f"{pods} of {replicas(document)} pods may start alone, and hold their GPUs while they wait for the rest"
        )
        yield Fault(least.place, reason, f"minAvailable: {replicas(document)}")


@rule("https://github.com/kubeflow/pytorch-operator/issues/55")
def master_is_not_one(document: Node) -> Iterator[Fault]:
    for name, role in roles(document):
        count = role.get("replicas")
        if name == "Master" and count and count.text() != "1":
            reason = f"a PyTorchJob has one Master, the node with rank 0: {count.text()} are refused"
            yield Fault(count.place, reason, "replicas: 1, and the other pods as Workers")


@rule("https://github.com/kubeflow/trainer/pull/2035")
def replica_type_is_unknown(document: Node) -> Iterator[Fault]:
    for name, role in roles(document):
        if name not in ("Master", "Worker"):
            meant = nearest(name.capitalize(), ["Master", "Worker"])
            reason = f"a PyTorchJob has only the types Master and Worker: the operator refuses {name}"
            yield Fault(role.key_place, reason, f"{meant or 'Worker'}:")


@rule("https://github.com/kubeflow/trainer/issues/1836")
def variable_is_the_operators(document: Node) -> Iterator[Fault]:
    for container in containers(document) if document.text("kind") == "PyTorchJob" else ():
        for entry in container.elements("env"):
            name = entry.get("name")
            if name and name.text() in _SET_BY_OPERATOR:
                reason = f"the operator adds its own {name.text()} to each pod, and the operator's value wins"
                fix = "leave it out; it follows from replicas, nprocPerNode and the Master's port named pytorchjob-port"
                yield Fault(name.place, reason, fix)
