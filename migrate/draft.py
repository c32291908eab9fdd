"""What a source says, key by key with the lines where it stands, and the YAML text made of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from jobspec import targets
from jobspec.artifact import plans_of
from jobspec.problems import Path, SpecError, printable
from jobspec.reading.yaml_source import parse
from jobspec.spec.job import Job
from lint.secrets import is_secret
from lint.shell import locator

_PLAIN = re.compile(r"(?!(?i:true|false|null)$)[A-Za-z/](?:[\w./@%+=-]|:(?=\w)| (?=[\w/-]))*|(?:\d+[dhms])+|\d+[MGT]iB")
_GIVEN = re.compile(r"(?:--([\w-]+)[ =]|\b(\w+)[\"']?(?::?[=-]|: ))[\"']?([^\s\"'}]{4,})")
_TOKEN = re.compile(r"\b(?:hf_\w{20,}|sk-[\w-]{20,}|gh[opsu]_\w{20,}|AKIA[A-Z0-9]{16}|glpat-[\w-]{20,})")
_LOGIN = re.compile(r"login (?:-\S+ )*([0-9a-zA-Z_-]{20,})")
_WIDTH = 100
_OF_SITE = {"slurm", "kubernetes", "image", "setup", "mounts", "resources", "gpu"}
_FABRIC = re.compile("NCCL_|FI_|UCX_|GLOO_|RCCL_|MPICH_|HSA_|ROCM_|MIOPEN_|ENROOT_|MELLANOX_|NVIDIA_|LD_|OMPI_")
_UNKNOWN = "not known"
_ASKED = {"name": "change-me", "nodes": 1, "procs_per_node": 1, "command": ["change-me.py"]}
_IMAGE = "registry.example/change-me:1.0"


@dataclass
class Said:
    """A value, where the source says it, and a remark."""

    value: Any
    where: str
    remark: str = ""


class Draft:
    """A spec in the making.

    said: values by their path in the spec; an element of a list has its number at the end of the path.
    left: pieces of the source that are no keys, each with the reason, and where they stand.  No reason: every artifact
    has it.  secrets: values that no text may show.  is_ours: render.py made the source.
    """

    def __init__(self, name: str, target: str, texts: Iterable[str]) -> None:
        self.name, self.target, self.is_ours = name, target, False
        self.said: dict[Path, Said] = {}
        self.left: dict[tuple[str, str], list[str]] = {}
        self.faults: list[str] = []
        self.secrets: set[str] = set()
        for text in texts:
            self.secrets.update(_TOKEN.findall(text), _LOGIN.findall(text))
            locate = locator(text, "")
            for found in _GIVEN.finditer(text):
                variable = (found[1] or found[2]).replace("-", "_").upper()
                if is_secret(variable, found[3]):
                    self.secret(variable, found[3], f"line {locate(found.start(), 1).line}")

    def say(self, key: str | Path, value: Any, where: str, remark: str = "") -> None:
        """Set a key such as `resources.cpus`.  A second value replaces the first, which is named."""
        path = tuple(key.split(".")) if isinstance(key, str) else key
        old = self.said.get(path)
        if old and old.value != value:
            self.lose(f"{_dotted(path)}: {old.value}", old.where, "set again")
        elif old:
            where, remark = _both(old.where, where), remark or old.remark
        self.said[path] = Said(value, where, remark)

    def add(self, key: str, value: Any, where: str, remark: str = "") -> None:
        """Append to a list such as `setup`, unless it has this value."""
        section: Path = tuple(key.split("."))
        own = [path for path in self.said if path[:-1] == section]
        again = next((path for path in own if self.said[path].value == value), None)
        self.say(again or (*section, len(own)), value, where, remark)

    def lose(self, text: str, where: str, why: str = "") -> None:
        """Name a piece of the source that is no key; without a reason if every artifact has it."""
        places = self.left.setdefault((" ".join(text.split()), why), [])
        places += [where] if where not in places else []

    def get(self, key: str) -> Any:
        found = self.said.get(tuple(key.split(".")))
        return found.value if found else None

    def where(self, key: str) -> str:
        found = self.said.get(tuple(key.split(".")))
        return found.where if found else "not said"

    def secret(self, name: str, value: str, where: str) -> None:
        """Take a secret's name, and keep its value out of every text."""
        self.secrets.add(value)
        self.add("secrets", name, where, "its value stays out of the spec: export it before you submit")

    def has_secret(self, value: Any) -> bool:
        return any(json.dumps(secret)[1:-1] in json.dumps(value) for secret in self.secrets)

    def make_valid(self) -> None:
        """Ask for what a job must have, and turn every value that the target refuses into a comment."""
        for path, one in list(self.said.items()):
            if self.has_secret(one.value):
                self._drop(path, one, "it holds the value of a secret")
        trains = any(path[0] == "train" for path in self.said)
        asked = {key: value for key, value in _ASKED.items() if key != "command" or not trains}
        if self.target != "slurm" and not (self.target == "trainjob" and self.get("kubernetes.runtime")):
            asked["image"] = _IMAGE
        while True:
            for key, value in asked.items():
                self.said.setdefault((key,), Said(value, _UNKNOWN, "write the right value here"))
            lines = list(_lines(_nested(self.said).items()))
            try:
                plans_of(parse("\n".join(line for line, _ in lines), self.name), targets.load(self.target))
                return
            except SpecError as error:
                wrong = {id(one): each.message for each in error.problems for one in lines[each.place.line - 1][1]}
                found = [(path, one) for path, one in self.said.items() if id(one) in wrong]
                if not found or any(one.where == _UNKNOWN for _, one in found):
                    raise
                for path, one in found:
                    self._drop(path, one, wrong[id(one)])

    def _drop(self, path: Path, one: Said, why: str) -> None:
        del self.said[path]
        value = "" if self.has_secret(one.value) else f": {one.value}"
        self.lose(f"{_dotted(path)}{value}", one.where, why)

    def texts(self, with_site: bool) -> tuple[str, str]:
        """Return the job, and with `with_site` the site apart from it."""
        head = [
            f"# A starter from {self.name}.  Behind each key stands the line that it comes from.",
            "# Check what was not taken, which stands at the end, and every value with a remark.",
            *(["# render.py made it: better edit its spec.  Taken: size, time, options, program."] * self.is_ours),
            *(f"# Fault in the source: {fault}" for fault in self.faults),
        ]
        foot = [
            f"# not taken, {', '.join(places)}: {_short(text)}: {why}"
            if why
            else f"# rendered or not needed, {', '.join(places)}: {_short(text)}"
            for (text, why), places in sorted(self.left.items(), key=lambda left: not left[0][1])
        ]
        site = {path: one for path, one in self.said.items() if with_site and _is_of_site(path)}
        job = {path: one for path, one in self.said.items() if path not in site}
        first, second = ([line for line, _ in _lines(_nested(part).items())] for part in (job, site))
        return self._hidden([*head, *first, *foot]), self._hidden([head[0], *second]) if with_site else ""

    def notes(self) -> list[str]:
        """Return what a person should look at first, in short."""
        lost = sum(bool(why) for _, why in self.left)
        asked = [_dotted(path) for path, one in self.said.items() if one.where == _UNKNOWN]
        notes = [f"{self.name}: {lost} pieces were not taken: look for `not taken` in the spec"] if lost else []
        notes += [f"{self.name}: not known, so write it yourself: {', '.join(asked)}"] if asked else []
        return notes + ([f"{self.name}: lint finds {len(self.faults)} faults in it"] if self.faults else [])

    def _hidden(self, lines: list[str]) -> str:
        text = "".join(f"{printable(line)}\n" for line in lines)
        for value in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(value, "…").replace(json.dumps(value)[1:-1], "…")
        return text


def _both(where: str, other: str) -> str:
    return where if other in where.split(", ") else f"{where}, {other}"


def _dotted(path: Path) -> str:
    return ".".join(str(key) for key in path if isinstance(key, str))


def _nested(said: dict[Path, Said]) -> dict[Any, Any]:
    order = list(Job.model_fields)
    tree: dict[Any, Any] = {}
    for path in sorted(said, key=lambda path: order.index(str(path[0])) if path[0] in order else len(order)):
        inner = tree
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = said[path]
    return tree


def _is_of_site(path: Path) -> bool:
    if path[0] == "env":
        return len(path) > 1 and _FABRIC.match(str(path[1])) is not None
    return path[0] in _OF_SITE and path != ("slurm", "launcher")


def _lines(
    items: Iterable[tuple[Any, Any]], indent: int = 0, inside: Said | None = None
) -> Iterator[tuple[str, list[Said]]]:
    """Yield each line of YAML, with the values that it is part of or stands above."""
    for key, node in items:
        said = node if isinstance(node, Said) else inside
        value = node.value if isinstance(node, Said) else node
        text = _flow(value) if said else ""
        is_tree = isinstance(value, dict | list) and bool(value) and (not said or indent + len(text) > _WIDTH)
        line = f"{' ' * indent}{'-' if isinstance(key, int) else f'{_scalar(key)}:'}{'' if is_tree else f' {text}'}"
        if isinstance(node, Said):
            line += f"  # {node.where}{f': {node.remark}' if node.remark else ''}"
        yield line, [said] if said else list(_below(value))
        if is_tree:
            below = value.items() if isinstance(value, dict) else enumerate(value)
            yield from _lines(below, indent + 2, said)


def _below(node: Any) -> Iterator[Said]:
    if isinstance(node, dict):
        yield from (one for below in node.values() for one in _below(below))
    elif isinstance(node, Said):
        yield node


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(each)}" for key, each in value.items()) + "}"
    return "[" + ", ".join(map(_flow, value)) + "]" if isinstance(value, list) else _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=not (isinstance(value, str) and value.isprintable()))


def _short(text: str) -> str:
    return text if len(text) < 200 else f"{text[:199]}…"
