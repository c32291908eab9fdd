"""Rules for compose files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jobspec.reading.secret_names import names_secret
from lint.lexer import TORCHRUN
from lint.manifest import Node, script_of
from lint.rules import Fault, rule
from lint.secrets import masked
from lint.shell import Script


def services(document: Node) -> list[Node]:
    """Return every service of the file."""
    found = document.get("services")
    return [service for _, service in found.items()] if found else []


def scripts_in(document: Node) -> Iterator[Script]:
    """Yield what the services start."""
    for service in services(document):
        script = script_of(service.get("entrypoint"), service.get("command"))
        if script:
            yield script


def environment(service: Node) -> Iterator[tuple[str, str, Node]]:
    """Yield name, value and place of each variable, from either notation."""
    section = service.get("environment")
    for name, value in section.items() if section else ():
        yield name, value.text(), value
    for entry in service.elements("environment"):
        name, _, text = entry.text().partition("=")
        yield name, text, entry


@rule("https://github.com/pytorch/pytorch/issues/108861")
def shared_memory_of_a_service_is_small(document: Node) -> Iterator[Fault]:
    for service in services(document):
        script = script_of(service.get("entrypoint"), service.get("command"))
        trains = script is not None and any(command.has(*TORCHRUN) for command in script.commands)
        if trains and not service.get("shm_size") and service.text("ipc") not in ("host", "shareable"):
            reason = "/dev/shm of a container has 64 MiB: DataLoader workers and NCCL die of it"
            yield Fault(service.key_place, reason, "shm_size: 16gb")


@rule("https://github.com/NVIDIA/nvidia-container-toolkit/issues/2037")
def rdma_without_locked_memory(document: Node) -> Iterator[Fault]:
    for service in services(document):
        for device in service.elements("devices"):
            if "/dev/infiniband" in device.text() and service.get("ulimits", "memlock") is None:
                reason = "RDMA locks memory, and a container may lock only 64 KiB"
                yield Fault(device.place, reason, "ulimits: {memlock: -1}")


@rule("https://github.com/daytonaio/daytona/issues/4322")
def secret_in_compose_file(document: Node) -> Iterator[Fault]:
    for service in services(document):
        for name, value, node in environment(service):
            if names_secret(name) and value and not value.startswith("${"):
                reason = f"the value of {name} is in the file, and so in each copy of it"
                place = masked(replace(node.key_place, length=len(name)))
                yield Fault(place, reason, f"{name}: ${{{name}:?}}, from the environment of whoever starts it")
