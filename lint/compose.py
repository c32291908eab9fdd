"""Rules for compose files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from jobspec.problems import masked
from jobspec.spec.secret_names import names_secret
from lint.lexer import TORCHRUN
from lint.manifest import Node, script_of
from lint.rules import Fault, rule
from lint.shell import Script
from lint.torchrun import c10d, several_nodes, torchrun_flags

# What compose replaces, in text without braces, too; two dollars are one in the container.
_VARIABLE = re.compile(r"(?<!\$)(?:\$\$)*\$[A-Za-z_{]")

# The options that say where the nodes of a job meet.
_MEETS = ("master-addr", "master-port", "rdzv-endpoint")


def services(document: Node) -> list[Node]:
    """Return every service of the file."""
    found = document.get("services")
    return [service for _, service in found.items()] if found else []


def scripts_in(document: Node) -> Iterator[Script]:
    """Yield what the services start."""
    return filter(None, (_script(document, service) for service in services(document)))


def environment(service: Node) -> Iterator[tuple[str, str, Node]]:
    """Yield name, value and place of each variable, from either notation."""
    section = service.get("environment")
    for name, value in section.items() if section else ():
        yield name, value.text(), value
    for entry in service.elements("environment"):
        name, _, text = entry.text().partition("=")
        yield name, text, entry


def _script(document: Node, service: Node) -> Script | None:
    """Return what a service starts, after its variables; without secrets, for which there is a rule of its own here."""
    variables = [(name, value, node) for name, value, node in environment(service) if not names_secret(name)]
    script = script_of(service.get("entrypoint"), service.get("command"))
    if script is None:
        return None
    script = script.after([(f"{name}={value}", node.place) for name, value, node in variables])
    return replace(script, one_network=_shares_its_network(document, service))


def _shares_its_network(document: Node, service: Node) -> bool:
    """Return True if localhost in the service is the same machine as in others."""
    of_another = f"service:{service.key.value}"
    return any(other.text("network_mode") == of_another for other in services(document)) or service.text(
        "network_mode"
    ).startswith(("host", "service:", "container:"))


@rule("https://github.com/pytorch/pytorch/issues/108861")
def shared_memory_of_a_service_is_small(document: Node) -> Iterator[Fault]:
    for service in services(document):
        script = _script(document, service)
        trains = script is not None and any(command.has(*TORCHRUN) for command in script.commands)
        if trains and not service.get("shm_size") and service.text("ipc") not in ("host", "shareable"):
            reason = "/dev/shm of a container has 64 MiB, too little for DataLoader workers and NCCL"
            yield Fault(service.key_place, reason, "shm_size: 16gb")


@rule("https://github.com/narumiruna/pytorch-distributed-example/issues/19")
def services_have_the_same_node_rank(document: Node) -> Iterator[Fault]:
    first: dict[tuple[str, ...], str] = {}
    for service in services(document):
        script, name = _script(document, service), str(service.key.value)
        if script is None or not several_nodes(script) or c10d(script):
            continue
        profiles = [profile.text() for profile in service.elements("profiles")]  # they start together, others may not
        meets = [flag.value for option in _MEETS for flag in torchrun_flags(script, option)]
        for flag in torchrun_flags(script, "node-rank"):
            other = first.setdefault((*profiles, *meets, flag.value), name)
            if flag.value.isdigit() and other != name:
                reason = f"{other} already has node rank {flag.value}, but each node of the job needs its own"
                yield Fault(flag.place, reason, "number the services from 0: --node-rank=0, --node-rank=1, ...")


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
            if names_secret(name) and value and not _VARIABLE.search(value):
                reason = f"the value of {name} is in the file, and so in each copy of it"
                place = masked(replace(node.key_place, length=len(name)))
                yield Fault(
                    place, reason, f"{name}: ${{{name}:?}} takes the value from the shell that runs docker compose"
                )
