"""What a source says, key by key with the lines where it stands, and the YAML text made of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from jobspec import targets
from jobspec.artifact import plans_of
from jobspec.problems import Path, SpecError, printable
from jobspec.reading.yaml_source import parse
from jobspec.spec.job import Job
from lint.secrets import is_secret

_PLAIN = re.compile(r"(?!(?i:true|false|null)$)[A-Za-z/](?:[\w./@%+=-]|:(?=\w)| (?=[\w/-]))*|(?:\d+[dhms])+|\d+[MGT]iB")
ASSIGNED = re.compile(r"\b(\w+)(?=[\"']?(?::?[=-]|: )[\"']?([^\s\"'}]{4,}))")
_TOKEN = re.compile(
    r"\b(?:hf_\w{20,}|sk-[\w-]{20,}|gh[opsu]_\w{20,}|AKIA[A-Z0-9]{16}|glpat-[\w-]{20,}|(?<=login )[0-9a-f]{40})"
)
_WIDTH = 110
_OF_SITE = {"slurm", "kubernetes", "image", "setup", "mounts", "resources", "gpu"}
_FABRIC = re.compile("NCCL_|FI_|UCX_|GLOO_|RCCL_|MPICH_|HSA_|ROCM_|MIOPEN_|ENROOT_|MELLANOX_|NVIDIA_|LD_|OMPI_")
_ASKED: dict[Path, Any] = {
    ("name",): "change-me",
    ("nodes",): 1,
    ("procs_per_node",): 1,
    ("command",): ["change-me.py"],
    ("image",): "registry.example/change-me:1.0",
}


@dataclass
class Said:
    """A value, where the source says it, and a remark."""

    value: Any
    where: str
    remark: str = ""


@dataclass
class Lost:
    """A piece of the source that is not in the spec, and why."""

    text: str
    where: str
    why: str


Tree = dict[Any, Any]


class Draft:
    """A spec in the making.

    said: values by their path in the spec; an element of a list has its number at the end of the path.
    rendered: pieces of the source that every artifact has anyway.  secrets: values that no text may show.
    """

    def __init__(self, file: str, target: str) -> None:
        self.file, self.target = file, target
        self.name = "stdin" if file == "-" else file.rpartition("/")[2]
        self.said: dict[Path, Said | Lost] = {}
        self.rendered: list[str] = []
        self.faults: list[str] = []
        self.secrets: set[str] = set()
        self.is_ours = False
        self._number = count()

    def say(self, key: str, value: Any, where: str, remark: str = "") -> None:
        """Set a key such as `resources.cpus`.  A second value replaces the first, which is named."""
        path = tuple(key.split("."))
        self._set(path, Said(value, where, remark))

    def say_in(self, key: str, name: str, value: Any, where: str, remark: str = "") -> None:
        """Set a name, which may have dots, in a mapping such as `env`."""
        if key == "env" and is_secret(name, str(value)):
            self.secret(name, str(value), where)
            return
        self._set((*key.split("."), name), Said(value, where, remark))

    def add(self, key: str, value: Any, where: str, remark: str = "") -> None:
        """Append to a list such as `setup`, unless it has this value."""
        path = tuple(key.split("."))
        for each, one in self.said.items():
            if each[:-1] == path and isinstance(one, Said) and one.value == value:
                one.where = both(one.where, where)
                return
        number: Path = (*path, next(self._number))
        self.said[number] = Said(value, where, remark)

    def lose(self, key: str, text: str, where: str, why: str) -> None:
        """Name what was not taken, at its place: the section or list of a key."""
        path = tuple(key.split("."))
        for each, one in self.said.items():
            if each[:-1] == path and isinstance(one, Lost) and (one.text, one.why) == (text, why):
                one.where = both(one.where, where)
                return
        comment: Path = (*path, f"#{next(self._number)}")
        self.said[comment] = Lost(text, where, why)

    def has(self, key: str) -> bool:
        return tuple(key.split(".")) in self.said

    def join(self, one: Said | Lost | None, where: str) -> None:
        """Add a place to a value that several places say."""
        if one is not None:
            one.where = both(one.where, where)

    def keep_secrets_of(self, text: str) -> None:
        """Let no text show what looks like a secret's value in a source, whatever becomes of its line."""
        self.secrets.update(value for name, value in ASSIGNED.findall(text) if is_secret(name, value))
        self.secrets.update(_TOKEN.findall(text))

    def secret(self, name: str, value: str, where: str) -> None:
        """Take a secret's name, and keep its value out of every text."""
        if len(value) > 3:
            self.secrets.add(value)
        if not any(path[0] == "secrets" and one.value == name for path, one in self.said.items() if type(one) is Said):
            self.add("secrets", name, where, "its value stays out of the spec: export it before you submit")

    def _set(self, path: Path, new: Said) -> None:
        old = self.said.get(path)
        if isinstance(old, Said) and old.value != new.value:
            self.lose(".".join(map(str, path[:-1])) or str(path[0]), f"{path[-1]}: {old.value}", old.where, "set again")
        elif isinstance(old, Said):
            new = Said(new.value, both(old.where, new.where), new.remark or old.remark)
        self.said[path] = new

    def make_valid(self) -> None:
        """Ask for what a job must have, and turn every value that the target refuses into a comment."""
        done = {("image",)} if not self._needs_image() else set()
        done |= {("command",)} if any(path[0] == "train" for path in self.said) else set()
        needed = [path for path in _ASKED if path not in done]
        for _ in range(40):
            for path in needed:
                if not isinstance(self.said.get(path), Said):
                    self.said[path] = Said(_ASKED[path], "not known", "write the right value here")
            lines = list(self._lines(self._tree()))
            try:
                plans_of(parse("\n".join(line for line, _ in lines), self.file), targets.load(self.target))
                return
            except SpecError as error:
                wrong = {
                    id(one): problem for problem in error.problems for one in _inside(lines[problem.place.line - 1][1])
                }
                found = [(path, one) for path, one in self.said.items() if id(one) in wrong and type(one) is Said]
                if not found or any(one.where == "not known" for _, one in found):
                    raise
                for path, one in found:
                    text = f"{'.'.join(map(str, path if isinstance(path[-1], str) else path[:-1]))}: {one.value}"
                    del self.said[path]
                    above = ".".join(map(str, path[:-1])) or str(path[0])
                    self.lose(above, text, one.where, wrong[id(one)].message)

    def _needs_image(self) -> bool:
        return self.target not in ("slurm", "trainjob") or (
            self.target == "trainjob" and not self.has("kubernetes.runtime")
        )

    def texts(self, with_site: bool) -> tuple[str, str]:
        """Return the job, and with `with_site` the site apart from it."""
        head = [
            f"# A starter from {printable(self.name)}.  Behind each key stands the line that it comes from.",
            "# Check what was not taken, and every value with a remark.",
            *(["# render.py made it: better edit its spec.  Taken: size, time, options, program."] * self.is_ours),
            *(f"# Fault in the source: {printable(fault)}" for fault in self.faults),
        ]
        pieces = (printable(_short(piece)) for piece in dict.fromkeys(self.rendered))
        foot = [f"# Rendered or not needed, so no key: {piece}" for piece in pieces]
        site = {path: one for path, one in self.said.items() if with_site and _is_of_site(path)}
        job = {path: one for path, one in self.said.items() if path not in site}
        parts = [self._lines(_nested(part)) for part in (job, site)]
        first, second = ([line for line, _ in part] for part in parts)
        return self._hidden([*head, *first, *foot]), self._hidden([head[0], *second]) if with_site else ""

    def notes(self) -> list[str]:
        """Return what a person should look at first, in short."""
        lost = [one for one in self.said.values() if isinstance(one, Lost)]
        asked = [".".join(map(str, path)) for path, one in self.said.items() if one.where == "not known"]
        notes = [f"{self.name}: {len(lost)} pieces were not taken: look for `not taken` in the spec"] if lost else []
        notes += [f"{self.name}: not known, so write it yourself: {', '.join(asked)}"] if asked else []
        return notes + ([f"{self.name}: lint finds {len(self.faults)} faults in it"] if self.faults else [])

    def _hidden(self, lines: list[str]) -> str:
        text = "\n".join(lines) + "\n"
        for value in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(value, "…").replace(json.dumps(value)[1:-1], "…")
        return text

    def _tree(self) -> Tree:
        for path, one in list(self.said.items()):
            if isinstance(one, Said) and any(value in json.dumps(one.value) for value in self.secrets):
                self.said[path] = Lost(f"{path[-1]}", one.where, "it holds the value of a secret")
        return _nested(self.said)

    def _lines(self, tree: Tree) -> Iterator[tuple[str, Said | Tree | None]]:
        order = list(Job.model_fields)
        for key in sorted(tree, key=lambda key: order.index(key) if key in order else len(order)):
            yield from _key(key, tree[key], 0)


def both(where: str, other: str) -> str:
    return where if other in where.split(", ") else f"{where}, {other}"


def _nested(said: dict[Path, Said | Lost]) -> Tree:
    tree: Tree = {}
    for path, one in said.items():
        inner = tree
        for key in path[:-1]:
            below = inner.setdefault(key, {})
            if not isinstance(below, dict):  # a comment beside a plain value
                below = inner[key] = {"": below}
            inner = below
        inner[path[-1]] = {**inner[path[-1]], "": one} if path[-1] in inner else one
    return tree


def _is_of_site(path: Path) -> bool:
    if path[0] == "env":
        return len(path) > 1 and _FABRIC.match(str(path[1])) is not None
    return path[0] in _OF_SITE and path != ("slurm", "launcher")


def _has_value(node: Any) -> bool:
    return any(True for _ in _inside(node))


def _key(key: Any, node: Any, indent: int) -> Iterator[tuple[str, Said | Tree | None]]:
    pad = " " * indent
    if isinstance(node, Lost):
        yield f"{pad}# not taken, {node.where}: {printable(_short(node.text))}: {printable(node.why)}", None
    elif isinstance(node, Said):
        remark = f"{node.where}{f': {node.remark}' if node.remark else ''}"
        first, *rest = _value(node.value, indent + 2, len(pad) + len(str(key)) + 2)
        name = "-" if isinstance(key, int) else f"{_scalar(key)}:"
        yield f"{pad}{name}{' ' + first if first else ''}  # {printable(remark)}", node
        yield from ((line, node) for line in rest)
    elif "" in node:
        yield from _key(key, node[""], indent)
        yield from (line for name, below in node.items() if name for line in _key(name, below, indent))
    else:
        inside = indent
        if _has_value(node):
            yield f"{pad}{_scalar(key)}:", node
            inside += 2
        yield from (line for name, below in node.items() for line in _key(name, below, inside))


def _inside(node: Any) -> Iterator[Said]:
    if isinstance(node, dict):
        yield from (one for below in node.values() for one in _inside(below))
    elif isinstance(node, Said):
        yield node


def _value(value: Any, indent: int, used: int) -> list[str]:
    """Return a value as YAML: what stands behind the key, and the lines below it."""
    flow = _flow(value)
    if not isinstance(value, dict | list) or not value or used + len(flow) < _WIDTH:
        return [flow]
    lines, pad = [""], " " * indent
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        name = f"{_scalar(key)}:" if isinstance(value, dict) else "-"
        first, *rest = _value(each, indent + 2, indent + len(name) + 1)
        if name == "-" and not first:
            first, rest = rest[0].strip(), rest[1:]
        lines += [f"{pad}{name}{' ' + first if first else ''}", *rest]
    return lines


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(each)}" for key, each in value.items()) + "}"
    return "[" + ", ".join(map(_flow, value)) + "]" if isinstance(value, list) else _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=not (isinstance(value, str) and value.isprintable()))


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) < 200 else f"{text[:199]}…"
