"""Find the containers of a Kubernetes object, or the services of a compose file, and what they start."""

import shlex
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from lint.launches import SHELL
from lint.manifest import Node
from lint.sbatch import number
from lint.shell import Script
from lint.words import Text

# What operators set in each pod.
_BY_OPERATOR = ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_RDZV_ENDPOINT")


@dataclass
class Container:
    """A container of an object's pods, a TrainJob's trainer (its pod is in its runtime), or a service of compose.

    Init containers are among them.  template: its pod's.  pods: how many the object asks for; None if it does not say.
    script: what it starts; empty if the image decides it.
    """

    document: Node
    node: Node
    template: Node
    pods: int | None
    script: Script


class Manifest(NamedTuple):
    """The objects of a file of Kubernetes, or a compose file."""

    documents: Sequence[Node]
    containers: Sequence[Container]


def containers(document: Node) -> list[Container]:
    """Return the containers of all pods of an object, or the services of a compose file, in order."""
    pods, trainer = templates(document), document.get("spec", "trainer")
    found: list[tuple[Node, Node, int | None]] = [(service, service, None) for _, service in document.items("services")]
    for template, count in pods:
        both = [*template.elements("spec", "initContainers"), *template.elements("spec", "containers")]
        found += [(node, template, count) for node in both]
    found += [(trainer, trainer, None)] if trainer else []
    made = [Container(document, *each, _script(document, each[0])) for each in found]
    for container in made if len(pods) == 1 and document.text("kind") in ("Job", "JobSet") else ():
        container.script.asked["nodes"] = str(container.pods or "")
    return made


def templates(document: Node) -> list[tuple[Node, int | None]]:
    """Return the pod templates of an object, each with its number of pods; None if the object does not say."""
    owners = [(role, "replicas") for _, role in document.items("spec", "pytorchReplicaSpecs")]
    owners += [(task, "replicas") for task in document.elements("spec", "tasks")]  # a Job of Volcano
    jobs = document.elements("spec", "replicatedJobs") + document.elements("spec", "template", "spec", "replicatedJobs")
    specs = [document.get("spec"), document.get("spec", "jobTemplate", "spec")]
    for spec in filter(None, [*specs, *(job.get("template", "spec") for job in jobs)]):
        owners.append((spec, "parallelism" if spec.get("parallelism") else "completions"))
    found = [(template, number(owner.text(key))) for owner, key in owners if (template := owner.get("template"))]
    found += [(document, 1)] if document.text("kind") == "Pod" else []
    return [pod for pod in found if pod[0].get("spec", "containers")]


def _script(document: Node, node: Node) -> Script:
    """Return what a container starts: the script of `sh -c`, else its words as one command."""
    given = [each for key in ("entrypoint", "command", "args") if (each := node.get(key))]
    words = [word for each in given for word in each.elements() or [each]]
    values = [word.text() for word in words]
    at = next((at for at, value in enumerate(values) if at and not value.startswith("-")), len(values))
    shell = values[0].rpartition("/")[2] if any(value.endswith("c") for value in values[1:at]) else ""
    if SHELL.match(shell) and at < len(values):
        script = Script.parse(values[at], words[at].place_inside)
        script.shell = shell
    else:  # compose splits a text as a shell does
        written = [word.text() if word in given else shlex.quote(word.text()) for word in words]
        ends = list(accumulate(len(each) + 1 for each in written))
        script = Script.parse(" ".join(written), lambda start, _: words[bisect_right(ends, start)].place)
    script.unit = "service" if document.get("services") else "pod"
    limits = [*node.items("resources", "limits"), *node.items("resourcesPerNode", "limits")]
    script.asked["gpus-per-node"] = next((value.text() for name, value in limits if name.endswith("/gpu")), "")
    for name, value, place in variables(node):
        text = script.unknown("valueFrom") if value is None else value
        script.environment[name] = Text(text, [0] * len(text))
        key = replace(place.key_place, length=min(len(name), place.key_place.length))
        script.settings.append((name, value or "", key, place.place))
    operated = document.text("kind") in ("PyTorchJob", "TrainJob") or document.get("spec", "plugins", "pytorch")
    if operated or node.get("envFrom"):
        script.environment |= {name: Text(script.unknown(name), [0]) for name in _BY_OPERATOR}
    return script


def variables(node: Node) -> Iterator[tuple[str, str | None, Node]]:
    """Yield name, value and place of each variable of a container; the value is None if it comes from elsewhere."""
    for entry in node.elements("env"):
        value = entry.get("value")
        yield entry.text("name"), value.text() if value else None, value or entry
    for name, value in node.items("environment"):
        yield name, value.text(), value
    for entry in node.elements("environment"):
        name, _, text = entry.text().partition("=")
        yield name, text, entry
