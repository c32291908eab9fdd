"""Find the pods of a Kubernetes object and what they start."""

from __future__ import annotations

from collections.abc import Iterator

from lint.manifest import Node, script_of
from lint.shell import Script


def templates(document: Node) -> Iterator[Node]:
    """Yield the pod templates of an object: mappings with metadata and spec."""
    jobs = document.elements("spec", "replicatedJobs")  # a JobSet, or below a runtime that holds one
    jobs += document.elements("spec", "template", "spec", "replicatedJobs")
    places = [
        document if document.text("kind") == "Pod" else None,
        *(role.get("template") for _, role in roles(document)),
        document.get("spec", "template"),  # a Job, a Deployment
        document.get("spec", "jobTemplate", "spec", "template"),  # a CronJob
        *(job.get("template", "spec", "template") for job in jobs),
    ]
    yield from (template for template in places if template and template.get("spec", "containers"))


def roles(document: Node) -> list[tuple[str, Node]]:
    """Return the replica types of a PyTorchJob with their names."""
    found = document.get("spec", "pytorchReplicaSpecs")
    return list(found.items()) if found else []


def containers(document: Node) -> Iterator[Node]:
    """Yield the containers of all pods, in order, without init containers: those prepare the training."""
    for template in templates(document):
        yield from template.elements("spec", "containers")


def variables(document: Node) -> Iterator[Node]:
    """Yield the entries of env: those of all containers, init containers included, and of a TrainJob's trainer."""
    for template in templates(document):
        for container in [*template.elements("spec", "initContainers"), *template.elements("spec", "containers")]:
            yield from container.elements("env")
    yield from document.elements("spec", "trainer", "env")


def scripts_in(document: Node) -> Iterator[Script]:
    """Yield what the containers start.  A TrainJob's container is in its runtime, but its command is here."""
    trainer = document.get("spec", "trainer")
    for container in [*containers(document), *([trainer] if trainer else [])]:
        script = script_of(container.get("command"), container.get("args"))
        if script:
            yield script


def gpus(owner: Node, *path: str) -> str:
    """Return the number of GPUs that a container, or a section with limits at `path`, requests; empty if none."""
    limits = owner.get(*(path or ("resources", "limits")))
    return next((value.text() for name, value in limits.items() if name.endswith("/gpu")), "") if limits else ""


def starts(container: Node, *programs: str) -> bool:
    """Return True if a container starts one of these programs."""
    script = script_of(container.get("command"), container.get("args"))
    return script is not None and any(command.has(*programs) for command in script.commands)
