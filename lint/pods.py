"""Find the containers of a Kubernetes object, or the services of a compose file, and what they start."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from jobspec.problems import Place
from lint.launches import Launch, launches
from lint.manifest import Node
from lint.sbatch import number
from lint.shell import Script, Text

_SHELLS = ("sh", "bash", "ash", "dash", "zsh")
# What operators set in each pod.
_BY_OPERATOR = ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_RDZV_ENDPOINT")


@dataclass
class Container:
    """A container of an object's pods, a TrainJob's trainer (its pod is in its runtime), or a service of compose.

    template: its pod's.  pods: how many the object asks for; None if it does not say.
    script: what it starts; None if the image decides it, and for init containers, which only prepare.
    """

    document: Node
    node: Node
    template: Node
    pods: int | None
    script: Script | None = None

    @property
    def is_service(self) -> bool:
        return self.document.get("kind") is None

    @property
    def launches(self) -> list[Launch]:
        return launches(self.script) if self.script else []

    @property
    def gpus(self) -> int | None:
        """The number of GPUs that it requests; None if it requests none."""
        limits = [*self.node.items("resources", "limits"), *self.node.items("resourcesPerNode", "limits")]
        return number(next((value.text() for name, value in limits if name.endswith("/gpu")), ""))

    def variables(self) -> Iterator[tuple[str, str | None, Node]]:
        """Yield name, value and place of each variable; the value is None if it comes from elsewhere."""
        for entry in self.node.elements("env"):
            value = entry.get("value")
            yield entry.text("name"), value.text() if value else None, value or entry
        for name, value in self.node.items("environment"):
            yield name, value.text(), value
        for entry in self.node.elements("environment"):
            name, _, text = entry.text().partition("=")
            yield name, text, entry


@dataclass
class Manifest:
    """The objects of a file of Kubernetes, or a compose file."""

    documents: Sequence[Node]

    @cached_property
    def containers(self) -> list[Container]:
        return [container for document in self.documents for container in containers(document)]


def containers(document: Node) -> list[Container]:
    """Return the containers of all pods of an object, or the services of a compose file, in order."""
    found = [Container(document, service, service, None) for _, service in document.items("services")]
    pods = templates(document)
    for template, count in pods:
        found += [Container(document, node, template, count) for node in template.elements("spec", "containers")]
    trainer = document.get("spec", "trainer")
    found += [Container(document, trainer, trainer, None)] if trainer else []
    for container in found:
        container.script = _script(container)
        if container.script and len(pods) == 1 and container.pods and document.text("kind") in ("Job", "JobSet"):
            container.script.asked["nodes"] = str(container.pods)
    inits = [(node, *pod) for pod in pods for node in pod[0].elements("spec", "initContainers")]
    return found + [Container(document, node, template, count) for node, template, count in inits]


def templates(document: Node) -> list[tuple[Node, int | None]]:
    """Return the pod templates of an object, each with its number of pods; None if the object does not say."""
    owners = [(role, "replicas") for _, role in document.items("spec", "pytorchReplicaSpecs")]
    owners += [(task, "replicas") for task in document.elements("spec", "tasks")]  # a Job of Volcano
    jobs = document.elements("spec", "replicatedJobs") + document.elements("spec", "template", "spec", "replicatedJobs")
    specs = [document.get("spec"), document.get("spec", "jobTemplate", "spec")]
    for spec in filter(None, [*specs, *(job.get("template", "spec") for job in jobs)]):
        owners.append((spec, "parallelism" if spec.get("parallelism") else "completions"))
    found = [(template, number(owner.text(key))) for owner, key in owners if (template := owner.get("template"))]
    return [(document, 1)] * (document.text("kind") == "Pod") + [
        pod for pod in found if pod[0].get("spec", "containers")
    ]


def _script(container: Container) -> Script | None:
    """Return what a container starts: the script of `sh -c`, else its words as one command; None if there are none."""
    node, document = container.node, container.document
    keys = ("entrypoint", "command") if container.is_service else ("command", "args")
    words = [word for key in keys for word in _words(node.get(key))]
    values = [value for _, value in words]
    at = next((at for at, value in enumerate(values) if at and not value.startswith("-")), len(values))
    shell = values[0].rpartition("/")[2] if any(value.endswith("c") for value in values[1:at]) else ""
    if not words:
        return None
    if shell in _SHELLS and at < len(values):
        script = Script.parse(values[at], words[at][0].place_inside)
        script.shell = shell
    else:
        starts = [0, *accumulate(len(shlex.quote(value)) + 1 for value in values)]

        def locate(start: int, length: int) -> Place:
            return next(node.place for (node, _), end in zip(words, starts[1:], strict=True) if start < end)

        script = Script.parse(shlex.join(values), locate)
    script.in_container = True
    if container.gpus:
        script.asked["gpus-per-node"] = str(container.gpus)
    for name, value, _ in container.variables():
        text = script.unknown("valueFrom") if value is None else value
        script.environment[name] = Text(text, [0] * len(text))
    operated = document.text("kind") in ("PyTorchJob", "TrainJob") or document.get("spec", "plugins", "pytorch")
    if operated or node.get("envFrom"):
        script.environment |= {name: Text(script.unknown(name), [0]) for name in _BY_OPERATOR}
    modes = [other.text("network_mode") for _, other in document.items("services")]
    shared = f"service:{node.key.value}" in modes or node.text("network_mode").startswith(("host", "service:", "conta"))
    script.one_network = shared
    return script


def _words(node: Node | None) -> list[tuple[Node, str]]:
    """Return the words of a list, or of a text, which compose splits as a shell does."""
    try:
        return (
            [(node, word) for word in shlex.split(node.text())]
            if node and node.text()
            else [(element, element.text()) for element in (node.elements() if node else ())]
        )
    except ValueError:
        return []
