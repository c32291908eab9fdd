"""Read YAML that others wrote (Kubernetes manifests, compose files) as nodes with places.

Unlike a job spec, such a file may have anchors, tags and several documents, and values stay text as written.  So this
reader is not jobspec's.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import yaml

from jobspec.problems import Place, Problem, SpecError
from lint.shell import Script

_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # those of YAML 1.1
_SHELLS = ("sh", "bash", "ash", "dash", "zsh")


# What Kubernetes takes for a number or a boolean: sigs.k8s.io/yaml, which is Go's yaml.v2.  It reads more of them than
# YAML 1.1 (1e3, 0o7, y), but no times of day; a number in JSON is one of these, too.
_NUMBER = r"""(?x)
    [-+]? (?: 0[xX]_*[0-9a-fA-F][0-9a-fA-F_]* | 0[bB]_*[01][01_]* | 0[oO]_*[0-7][0-7_]*
            | [0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9][0-9_]*)? | \.[0-9]+(?:[eE][-+]?[0-9]+)?
            | \.(?:inf|Inf|INF) ) \Z
    | \.(?:nan|NaN|NAN) \Z
"""
_SWITCH = r"(?:[yYnN]|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF|true|True|TRUE|false|False|FALSE)\Z"


class _Loader(yaml.SafeLoader):
    """Loader that gives a plain value the tag that Kubernetes gives it."""


_Loader.yaml_implicit_resolvers = {}  # none of YAML 1.1
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(_NUMBER), list("-+.0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(_SWITCH), list("yYnNoOtTfF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"<<\Z"), ["<"])


@dataclass(frozen=True)
class Node:
    """A value of a document; `key` is its key, or the value itself in a list."""

    raw: yaml.Node
    key: yaml.Node
    file: str
    lines: tuple[str, ...]

    def get(self, *path: str) -> Node | None:
        """Return the value below some keys, or None."""
        node: Node | None = self
        for part in path:
            node = next((value for key, value in node.items() if key == part), None) if node else None
        return node

    def text(self, *path: str) -> str:
        """Return the scalar below some keys as written; empty if there is none."""
        node = self.get(*path)
        return str(node.raw.value) if node and isinstance(node.raw, yaml.ScalarNode) else ""

    def items(self) -> Iterator[tuple[str, Node]]:
        """Yield keys and values of a mapping, with those of its merge keys (`<<`); nothing for any other value."""
        for key, value in _pairs(self.raw, set()).values():
            yield str(key.value), Node(value, key, self.file, self.lines)

    def elements(self, *path: str) -> list[Node]:
        """Return the elements of the list below some keys; none if there is no list."""
        node = self.get(*path)
        values = node.raw.value if node and isinstance(node.raw, yaml.SequenceNode) else []
        return [Node(value, value, self.file, self.lines) for value in values]

    def at(self, path: Sequence[str | int]) -> Node | None:
        """Return the value at some keys and list positions, or None."""
        node: Node | None = self
        for part in path:
            below = (node.elements() if isinstance(part, int) else []) if node else []
            node = (
                (below[part] if part < len(below) else None)
                if isinstance(part, int)
                else node.get(part)
                if node
                else None
            )
        return node

    def plain(self) -> object:
        """Return the value as Kubernetes reads it; None for one that is no YAML for it."""
        try:
            return yaml.SafeLoader("").construct_document(self.raw)
        except (yaml.YAMLError, ValueError, TypeError, RecursionError):
            return None

    def has(self, name: str) -> bool:
        """Return True if a key of this name stands anywhere below."""
        seen: set[int] = set()  # an alias may lead back to a parent
        nodes = [self.raw]
        while nodes:
            raw = nodes.pop()
            if id(raw) in seen:
                continue
            seen.add(id(raw))
            if isinstance(raw, yaml.MappingNode):
                if any(key.value == name for key, _ in raw.value):
                    return True
                nodes += [value for _, value in raw.value]
            elif isinstance(raw, yaml.SequenceNode):
                nodes += raw.value
        return False

    @property
    def is_text(self) -> bool:
        return str(self.raw.tag) == "tag:yaml.org,2002:str"

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
        before = str(self.raw.value)[:start].split("\n")
        number = self.raw.start_mark.line + len(before)
        line = self.lines[number] if number < len(self.lines) else ""
        value_line = str(self.raw.value).split("\n")[len(before) - 1]
        indent = max(0, line.find(value_line))
        return Place(self.file, number + 1, indent + len(before[-1]) + 1, max(1, length), line)

    def _at(self, raw: yaml.Node) -> Place:
        start, end = raw.start_mark, raw.end_mark
        length = end.column - start.column if start.line == end.line else 1
        return Place(self.file, start.line + 1, start.column + 1, max(1, length), self.lines[start.line])


def documents(text: str, file: str) -> list[Node]:
    """Return the documents of a YAML file.  Raises SpecError if it is not YAML."""
    lines = (*_LINE_BREAK.split(text), "")  # the end of a file is a place too
    try:
        nodes = [node for node in yaml.compose_all(text, _Loader) if node is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line, mark.column) if mark else (0, 0)
        hint = "this is a template: render it first, and give the result to lint" if "{{" in text else ""
        place = Place(file, line + 1, column + 1, 1, lines[min(line, len(lines) - 1)])
        raise SpecError([Problem(place, f"not YAML: {error.problem}", hint)]) from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError):
        raise SpecError([Problem(Place(file, 1, 1, 1, lines[0]), "not YAML")]) from None
    return [Node(node, node, file, lines) for node in nodes]


def script_of(entrypoint: Node | None, arguments: Node | None) -> Script | None:
    """Return what a container starts: the script of `sh -c`, else its words as one command; None if there are none."""
    words = [*_words(entrypoint), *_words(arguments)]
    if not words:
        return None
    nodes = [node for node, _ in words]
    values = [value for _, value in words]
    if values[0].rpartition("/")[2] in _SHELLS:
        at = next((at for at, value in enumerate(values) if at and not value.startswith("-")), len(values))
        if at < len(values) and any(value.endswith("c") for value in values[1:at]):
            script = Script.parse(values[at], nodes[at].place_inside)
            script.in_container, script.shell = True, values[0].rpartition("/")[2]
            return script
    # The words joined by spaces are the text, so a place in the text belongs to the word there.
    starts = [sum(len(value) + 1 for value in values[:number]) for number in range(len(values))]

    def locate(start: int, length: int) -> Place:
        return nodes[max(number for number, begin in enumerate(starts) if begin <= start)].place

    script = Script.of_argv(values, locate)
    script.in_container = True
    return script


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


def _words(node: Node | None) -> Sequence[tuple[Node, str]]:
    if node is None:
        return []
    if isinstance(node.raw, yaml.ScalarNode):  # compose splits a plain string like a shell
        try:
            return [(node, word) for word in shlex.split(str(node.raw.value))]
        except ValueError:
            return []
    return [(element, element.text()) for element in node.elements()]
