"""Find the pods of a Kubernetes object and what they start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lint.manifest import Node, script_of
from lint.sbatch import number
from lint.shell import Script, Text

# What the operators of these kinds set in each pod.
_BY_OPERATOR = ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_RDZV_ENDPOINT")


class Group(NamedTuple):
    """Pods of one template, and how many of them the object asks for; empty if it does not say."""

    template: Node
    size: str


def groups(document: Node) -> Iterator[Group]:
    """Yield the pod templates of an object."""
    owners = [(role, "replicas") for _, role in roles(document)]
    owners += [(task, "replicas") for task in document.elements("spec", "tasks")]  # a Job of Volcano
    jobs = document.elements("spec", "replicatedJobs") + document.elements("spec", "template", "spec", "replicatedJobs")
    specs = [document.get("spec"), document.get("spec", "jobTemplate", "spec")]
    for spec in [*specs, *(job.get("template", "spec") for job in jobs)]:
        owners += [(spec, "parallelism" if spec.get("parallelism") else "completions")] if spec else []
    found = [Group(template, owner.text(key)) for owner, key in owners if (template := owner.get("template"))]
    found += [Group(document, "")] if document.text("kind") == "Pod" else []
    yield from (group for group in found if group.template.get("spec", "containers"))


def roles(document: Node) -> list[tuple[str, Node]]:
    """Return the replica types of a PyTorchJob with their names."""
    found = document.get("spec", "pytorchReplicaSpecs")
    return list(found.items()) if found else []


def containers(document: Node) -> Iterator[Node]:
    """Yield the containers of all pods, in order, without init containers: those prepare the training."""
    for group in groups(document):
        yield from group.template.elements("spec", "containers")


def variables(document: Node) -> Iterator[Node]:
    """Yield the entries of env: those of all containers, init containers included, and of a TrainJob's trainer."""
    for group in groups(document):
        for name in ("initContainers", "containers"):
            for container in group.template.elements("spec", name):
                yield from container.elements("env")
    yield from document.elements("spec", "trainer", "env")


def started(container: Node) -> Script | None:
    """Return what a container starts, with its variables; None if the image decides it."""
    script = script_of(container.get("command"), container.get("args"))
    for entry in container.elements("env") if script else ():
        value = entry.text("value") if entry.get("value") else script.unknown("valueFrom") if script else ""
        if script:
            script.environment[entry.text("name")] = Text(value, [0] * len(value))
    return script


def scripts_in(document: Node) -> Iterator[Script]:
    """Yield what the containers start.  A TrainJob's container is in its runtime, but its command is here."""
    trainer = document.get("spec", "trainer")
    for script in filter(None, map(started, [*containers(document), *([trainer] if trainer else [])])):
        if document.text("kind") in ("PyTorchJob", "TrainJob"):
            script.environment |= {name: Text(script.unknown(name), [0]) for name in _BY_OPERATOR}
        yield script


def gpus(owner: Node, *path: str) -> int | None:
    """Return the number of GPUs that a container, or a section with limits at `path`, requests; None if none."""
    limits = owner.get(*(path or ("resources", "limits")))
    return (
        number(next((value.text() for name, value in limits.items() if name.endswith("/gpu")), "")) if limits else None
    )
