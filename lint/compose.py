"""Rules for compose files; what the services start is read as a script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from jobspec.problems import masked
from lint.launches import launches
from lint.manifest import Node, script_of
from lint.nodes import asks_for_several, uses_c10d
from lint.rules import Fault, rule
from lint.secrets import is_secret
from lint.shell import Script, Text

# What compose replaces, in text without braces, too; two dollars are one in the container.
_VARIABLE = re.compile(r"(?<!\$)(?:\$\$)*\$[A-Za-z_{]")
_MEETS = ("master-addr", "master-port", "rdzv-endpoint")


def services(document: Node) -> list[Node]:
    """Return every service of the file."""
    found = document.get("services")
    return [service for _, service in found.items()] if found else []


def environment(service: Node) -> Iterator[tuple[str, str, Node]]:
    """Yield name, value and place of each variable, from either notation."""
    section = service.get("environment")
    for name, value in section.items() if section else ():
        yield name, value.text(), value
    for entry in service.elements("environment"):
        name, _, text = entry.text().partition("=")
        yield name, text, entry


def scripts_in(document: Node) -> Iterator[Script]:
    """Yield what the services start."""
    yield from (script for _, script in _started(document))


def _started(document: Node) -> Iterator[tuple[Node, Script]]:
    for service in services(document):
        script = script_of(service.get("entrypoint"), service.get("command"))
        if script:
            script.environment = {name: Text(value, [0] * len(value)) for name, value, _ in environment(service)}
            mode = service.text("network_mode")
            of_another = any(
                other.text("network_mode") == f"service:{service.key.value}" for other in services(document)
            )
            script.one_network = of_another or mode.startswith(("host", "service:", "container:"))
            yield service, script


@rule
def shared_memory_is_small(document: Node) -> Iterator[Fault]:
    for service, script in _started(document):
        trains = any(launch.is_agent and launch.value("nproc-per-node") != "1" for launch in launches(script))
        if trains and not service.get("shm_size") and service.text("ipc") not in ("host", "shareable"):
            reason = "/dev/shm of a container has 64 MiB, too little for NCCL between its processes"
            yield Fault(service.key_place, reason, "shm_size: 16gb")


@rule
def node_rank_cannot_be(document: Node) -> Iterator[Fault]:
    first: dict[tuple[str, ...], str] = {}
    for service, script in _started(document):
        for launch in launches(script):
            rank = launch.options.get("node-rank")
            if rank is None or not rank.value.isdigit() or uses_c10d(launch) or not asks_for_several(script, launch):
                continue
            profiles = [
                profile.text() for profile in service.elements("profiles")
            ]  # they start together, others may not
            key = (*profiles, *(launch.value(option) for option in _MEETS), rank.value)
            other = first.setdefault(key, str(service.key.value))
            if other != service.key.value:
                reason = f"{other} already has node rank {rank.value}, but each node of the job needs its own"
                yield Fault(
                    script.place(rank.text), reason, "number the services from 0: --node-rank=0, --node-rank=1, ..."
                )


@rule
def secret_in_file(document: Node) -> Iterator[Fault]:
    for service in services(document):
        for name, value, node in environment(service):
            if is_secret(name, value) and not _VARIABLE.search(value):
                place = masked(replace(node.key_place, length=len(name)))
                fix = f"{name}: ${{{name}:?}} takes the value from the shell that runs docker compose"
                yield Fault(place, f"the value of {name} is in the file, and so in each copy of it", fix)
