"""Read manifests and compose files that others wrote: nodes with places, the containers, and what these start.

Unlike a job spec, such a file may have anchors, tags and several documents, and values stay text as written.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product
from typing import NamedTuple

import yaml

from jobspec.problems import Place, Problem, SpecError
from lint.launches import SHELL
from lint.sbatch import number
from lint.shell import Script
from lint.words import Text

_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # those of YAML 1.1
# What Kubernetes takes for a number or a boolean: sigs.k8s.io/yaml reads more of them than YAML 1.1 (1e3, 0o7, y), but
# no times of day.
_NUMBER = r"[-+]?(?:0[xX][\da-fA-F]+|0[bB][01]+|0[oO][0-7]+|(?:\d[\d_]*(?:\.[\d_]*)?|\.\d+)(?:[eE][-+]?\d+)?)\Z"
_SWITCH = r"(?:[yYnN]|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF|true|True|TRUE|false|False|FALSE)\Z"

# What operators set in each pod.
_BY_OPERATOR = ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_RDZV_ENDPOINT")


class _Loader(yaml.SafeLoader):
    """Loader that gives a plain value the tag that Kubernetes gives it."""


_Loader.yaml_implicit_resolvers = {}  # none of YAML 1.1
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(_NUMBER), list("-+.0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(_SWITCH), list("yYnNoOtTfF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(?:~|null|Null|NULL)?\Z"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"<<\Z"), ["<"])
_Loader.add_constructor("tag:yaml.org,2002:float", lambda _, node: _number_of(node.value.replace("_", "")))
_Loader.add_constructor("tag:yaml.org,2002:bool", lambda _, node: node.value.lower() in ("y", "yes", "on", "true"))


def _number_of(text: str) -> float:
    """Return the number that Kubernetes reads, such as 0400 as the file mode that it is for people."""
    octal = re.fullmatch(r"([-+]?0)([0-7]+)", text)
    try:
        return int(f"{octal[1]}o{octal[2]}" if octal else text, 0)
    except ValueError:
        return float(text)


@dataclass(frozen=True)
class Node:
    """A value of a document; `key` is its key, or the value itself in a list."""

    raw: yaml.Node
    key: yaml.Node
    file: str
    lines: tuple[str, ...]

    def get(self, *path: str | int) -> Node | None:
        """Return the value below some keys and list positions, or None."""
        if not path:
            return self
        below = enumerate(self.elements()) if isinstance(path[0], int) else self.items()
        node = next((value for key, value in below if key == path[0]), None)
        return node.get(*path[1:]) if node else None

    def text(self, *path: str) -> str:
        """Return the scalar below some keys as written; empty if there is none."""
        node = self.get(*path)
        return str(node.raw.value) if node and isinstance(node.raw, yaml.ScalarNode) else ""

    def items(self, *path: str) -> Iterator[tuple[str, Node]]:
        """Yield keys and values of the mapping below some keys, with those of its merge keys (`<<`); else nothing."""
        node = self.get(*path)
        for key, value in _pairs(node.raw, set()).values() if node else ():
            yield str(key.value), Node(value, key, self.file, self.lines)

    def elements(self, *path: str) -> list[Node]:
        """Return the elements of the list below some keys; none if there is no list."""
        node = self.get(*path)
        values = node.raw.value if node and isinstance(node.raw, yaml.SequenceNode) else []
        return [Node(value, value, self.file, self.lines) for value in values]

    def plain(self) -> object:
        """Return the value as Kubernetes reads it; None for one that is no YAML for it."""
        try:
            return _Loader("").construct_document(self.raw)
        except (yaml.YAMLError, ValueError, TypeError, RecursionError):
            return None

    def says(self, pattern: str) -> bool:
        """Return True if a line of the value matches."""
        lines = self.lines[self.raw.start_mark.line : self.raw.end_mark.line + 1]
        return any(re.search(pattern, line) for line in lines)

    @property
    def is_number_or_switch(self) -> bool:
        """True if Kubernetes reads the value as a number or a boolean."""
        return str(self.raw.tag).removeprefix("tag:yaml.org,2002:") in ("int", "float", "bool")

    @property
    def place(self) -> Place:
        """The place of the value, or of its first character if it has several lines."""
        return self._at(self.raw)

    @property
    def key_place(self) -> Place:
        return self._at(self.key)

    def place_inside(self, start: int, length: int) -> Place:
        """Return the place of a piece of a block text (`|`); for any other text the place of the whole."""
        if not isinstance(self.raw, yaml.ScalarNode) or self.raw.style != "|":
            return self.place
        begin = self.raw.value.rfind("\n", 0, start) + 1
        row = self.raw.start_mark.line + self.raw.value.count("\n", 0, start) + 1
        line = self.lines[row] if row < len(self.lines) else ""
        indent = max(0, line.find(self.raw.value[begin:].partition("\n")[0]))
        return Place(self.file, row + 1, indent + start - begin + 1, max(1, length), line)

    def _at(self, raw: yaml.Node) -> Place:
        start, end = raw.start_mark, raw.end_mark
        length = end.column - start.column if start.line == end.line else 1
        return Place(self.file, start.line + 1, start.column + 1, max(1, length), self.lines[start.line])


def documents(text: str, file: str) -> list[Node]:
    """Return the documents of a YAML file, those in a List apart.  Raises SpecError if it is not YAML."""
    lines = (*_LINE_BREAK.split(text), "")  # the end of a file is a place too
    try:
        nodes = [node for node in yaml.compose_all(text, _Loader) if node is not None]
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line, column = (mark.line, mark.column) if mark else (0, 0)
        hint = "this is a template: render it first, and give the result to lint" if "{{" in text else ""
        place = Place(file, line + 1, column + 1, 1, lines[min(line, len(lines) - 1)])
        message = f"not YAML: {getattr(error, 'problem', None) or 'unreadable'}"
        raise SpecError([Problem(place, message, hint)]) from None
    read = [Node(node, node, file, lines) for node in nodes]  # a List is what `kubectl get -o yaml` prints
    return [each for one in read for each in (one.elements("items") if one.text("kind") == "List" else [one])]


def _pairs(raw: yaml.Node, seen: set[int]) -> dict[str, tuple[yaml.ScalarNode, yaml.Node]]:
    """Return the keys and values of a mapping by name.  Its own win over merged ones, and earlier merged ones win."""
    if not isinstance(raw, yaml.MappingNode) or id(raw) in seen:  # an alias may lead back to a parent
        return {}
    seen.add(id(raw))
    own: dict[str, tuple[yaml.ScalarNode, yaml.Node]] = {}
    merged: dict[str, tuple[yaml.ScalarNode, yaml.Node]] = {}
    for key, value in raw.value:
        if isinstance(key, yaml.ScalarNode) and key.tag == "tag:yaml.org,2002:merge":
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                merged = _pairs(source, seen) | merged
        elif isinstance(key, yaml.ScalarNode):
            own[str(key.value)] = (key, value)
    return merged | own


class Container(NamedTuple):
    """A container of an object's pods, a TrainJob's trainer (its pod is in its runtime), or a service of compose.

    Init containers are among them.  template: its pod's.  script: what it starts; empty if the image decides it.
    """

    document: Node
    node: Node
    template: Node
    script: Script


class Manifest(NamedTuple):
    """The objects of a file of Kubernetes, or a compose file."""

    documents: Sequence[Node]
    containers: Sequence[Container]


def containers(document: Node) -> list[Container]:
    """Return the containers of all pods of an object, or the services of a compose file, in order."""
    pods, trainer = templates(document), document.get("spec", "trainer")
    found = [(service, service) for _, service in document.items("services")]
    for (template, _), key in product(pods, ("initContainers", "containers")):
        found += [(node, template) for node in template.elements("spec", key)]
    found += [(trainer, trainer)] if trainer else []
    made = [Container(document, *each, _script(document, each[0])) for each in found]
    for container in made if len(pods) == 1 and document.text("kind") in ("Job", "JobSet") else ():
        container.script.asked["nodes"] = str(pods[0][1] or "")
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
        script = Script(values[at], words[at].place_inside)
        script.shell = shell
    else:  # compose splits a text as a shell does
        written = [word.text() if word in given else shlex.quote(word.text()) for word in words]
        ends = list(accumulate(len(each) + 1 for each in written))
        script = Script(" ".join(written), lambda start, _: words[bisect_right(ends, start)].place)
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
