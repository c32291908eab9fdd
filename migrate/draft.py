"""What a source says, key by key with the lines where it stands, and the YAML text made of it."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from jobspec import targets
from jobspec.artifact import plans_of
from jobspec.problems import Path, SpecError, printable
from jobspec.reading.yaml_source import parse
from jobspec.spec.job import Job
from lint.secrets import is_secret
from lint.shell import locator

_GIVEN = re.compile(r"((?<!-)--[\w-]+(?=[ =])|\b\w+(?=\W?(?::?[=-]|: )))(?=[\"']?[ :=-]{1,2}[\"']?([^\s\"'}]{4,}))")
_TOKEN = re.compile(r"\b(hf_\w{20,}|sk-[\w-]{20,}|gh[opsu]_\w{20,}|AKIA[A-Z0-9]{16}|glpat-[\w-]{20,})|login (\w{20,})")
_WIDTH = 100
_OF_SITE = {"slurm", "kubernetes", "image", "setup", "mounts", "resources", "gpu"}
_FABRIC = re.compile("NCCL_|FI_|UCX_|GLOO_|RCCL_|MPICH_|HSA_|ROCM_|MIOPEN_|ENROOT_|MELLANOX_|NVIDIA_|LD_|OMPI_")
_ASKED = {"name": "change-me", "nodes": 1, "procs_per_node": 1, "command": ["change-me.py"]}
_UNKNOWN = "not known"
NOT_SAID = "not said"


class Said(NamedTuple):
    """A value, where the source says it, and a remark."""

    value: Any
    where: str
    remark: str = ""


class Draft:
    """A spec in the making.

    said: values by their path in the spec; an element of a list has its number at the end of the path.
    left: pieces of the source that are no keys, each with the reason, and where they stand; no reason if every artifact
    has it.  secrets: values that no text may show, and their variables.
    """

    def __init__(self, name: str, target: str, texts: Iterable[str], is_ours: bool = False) -> None:
        self.name, self.target, self.is_ours = name, target, is_ours
        self.said: dict[Path, Said] = {}
        self.added: dict[tuple[Path, str], Path] = {}
        self.left: dict[tuple[str, str], dict[str, None]] = {}
        self.secrets: dict[str, str] = {}
        for text in texts:
            self.secrets |= {found[1] or found[2]: "" for found in _TOKEN.finditer(text)}
            locate = locator(text, "")
            for found in _GIVEN.finditer(text):
                variable = found[1].lstrip("-").replace("-", "_").upper()
                if is_secret(variable, found[2]):
                    self.say_secret(variable, found[2], f"line {locate(found.start(), 1).line}")

    def say(self, key: str | Path, value: Any, where: str, remark: str = "") -> None:
        """Set a key such as `resources.cpus`.  A second value replaces the first, which is named."""
        path = tuple(key.split(".")) if isinstance(key, str) else key
        old = self.said.get(path)
        if old and old.value != value:
            self._drop(path, old, "set again")
        elif old:
            remark = remark or old.remark
            wheres = dict.fromkeys([*old.where.split(", "), where] if len(old.where) < 999 else [old.where])
            where = ", ".join(each for each in wheres if each != NOT_SAID)
        self.said[path] = Said(value, where or NOT_SAID, remark)

    def add(self, key: str, value: Any, where: str, remark: str = "") -> None:
        """Append to a list such as `setup`, unless it has this value."""
        section: Path = tuple(key.split("."))
        path = self.added.setdefault((section, str(value)), (*section, len(self.added)))
        self.say(path, value, where, remark)

    def lose(self, text: str, where: str, why: str = "") -> None:
        """Name a piece of the source that is no key; without a reason if every artifact has it, or a key."""
        self.left.setdefault((" ".join(text.split()), why), {})[where] = None

    def get(self, key: str) -> Any:
        return getattr(self.said.get(tuple(key.split("."))), "value", None)

    def say_secret(self, name: str, value: str, where: str) -> None:
        """Take a secret's name, and keep its value out of every text."""
        self.secrets[value] = name
        self.add("secrets", name, where, "its value stays out of the spec: export it before you submit")

    def make_valid(self) -> None:
        """Ask for what a job must have, and turn every value that the target refuses into a comment."""
        for path, one in list(self.said.items()):
            if self._hidden(json.dumps(one.value)) != json.dumps(one.value):
                self._drop(path, one, "it holds the value of a secret")
        needs_image = self.target != "slurm" and not self.get("kubernetes.runtime")
        asked = {**_ASKED, **({"image": "registry.example/change-me:1.0"} if needs_image else {})}
        while True:
            for key, value in asked.items():
                self.said.setdefault((key,), Said(value, _UNKNOWN, "write the right value here"))
            lines = list(_lines(_nested(self.said).items()))
            try:
                plans_of(parse("\n".join(line for line, _ in lines), self.name), targets.load(self.target))
                return
            except SpecError as error:
                wrong = {lines[each.place.line - 1][1]: each.message for each in error.problems}
                why = {path: at for path in self.said for at in wrong if path[: len(at)] == at[: len(path)]}
                if not why or any(self.said[path].where == _UNKNOWN for path in why):
                    raise
                for path, at in why.items():
                    self._drop(path, self.said[path], wrong[at])

    def _drop(self, path: Path, one: Said, why: str) -> None:
        del self.said[path]
        key = ".".join(str(part) for part in path if isinstance(part, str))
        self.lose(f"{key}: {one.value}", one.where, why)

    def texts(self, with_site: bool) -> tuple[str, str]:
        """Return the job, and with `with_site` the site apart from it."""
        head = f"# A starter from {self.name}.  Behind each key stands the line that it comes from.\n"
        note = "# Check what was not taken, which stands at the end, and every value with a remark.\n"
        foot = list[str]()
        lines = {key: int((re.findall(r"\d+", where) or ["0"])[0]) for key, (where, *_) in self.left.items()}
        for text, why in sorted(self.left, key=lambda key: (not key[1], lines[key])):
            shown = self._hidden(text)
            piece = f"{', '.join(self.left[text, why])}: {shown if len(shown) < 200 else f'{shown[:199]}…'}"
            foot.append(f"# not taken, {piece}: {why}\n" if why else f"# no key of its own, {piece}\n")
        of_site = {path for path in self.said if path[0] in _OF_SITE and path != ("slurm", "launcher")}
        of_site |= {path for path in self.said if path[0] == "env" and _FABRIC.match(str(path[-1]))}
        parts = [{p: one for p, one in self.said.items() if (with_site and p in of_site) == site} for site in (0, 1)]
        first, second = ("".join(f"{line}\n" for line, _ in _lines(_nested(part).items())) for part in parts)
        return self._hidden(head + note + first + "".join(foot)), self._hidden(head + second) if with_site else ""

    def notes(self) -> list[str]:
        """Return what a person should look at first, in short."""
        lost = sum(bool(why) for _, why in self.left)
        asked = ", ".join(str(path[0]) for path, one in self.said.items() if one.where == _UNKNOWN)
        notes = [f"{self.name}: pieces not taken: {lost}; look for `not taken` in the spec"] * bool(lost)
        return notes + [f"{self.name}: not known, so write it yourself: {asked}"] * bool(asked)

    def _hidden(self, text: str) -> str:
        for value in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(value, "…").replace(json.dumps(value)[1:-1], "…")
        return "\n".join(map(printable, text.split("\n")))


def duration(seconds: int) -> str:
    """Return a time as a spec writes it, such as 36h."""
    units = {"d": 86400, "h": 3600, "m": 60, "s": 1}
    return next(f"{seconds // size}{unit}" for unit, size in units.items() if seconds % size == 0)


def _nested(said: dict[Path, Said]) -> dict[Any, Any]:
    order, tree = list(Job.model_fields), dict[Any, Any]()
    for path in sorted(said, key=lambda path: order.index(str(path[0])) if path[0] in order else len(order)):
        inner = tree
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = said[path]
    return tree


def _lines(items: Iterable[tuple[Any, Any]], above: Path = (), inside: bool = False) -> Iterator[tuple[str, Path]]:
    """Yield each line of YAML and its path.  inside: it is part of a value that is said, so that a value has lines."""
    for key, node in items:
        said, value = (True, node.value) if isinstance(node, Said) else (inside, node)
        text = json.dumps(value, ensure_ascii=not str(value).isprintable()) if said else ""
        is_tree = isinstance(value, dict | list) and bool(value) and (not said or 2 * len(above) + len(text) > _WIDTH)
        name = key if re.fullmatch(r"[A-Za-z_][\w./-]*", str(key)) else json.dumps(key)
        start = "-" if isinstance(key, int) else f"{name}:"
        remark = f"  # {node.where}{f': {node.remark}' if node.remark else ''}" if isinstance(node, Said) else ""
        yield f"{'  ' * len(above)}{start}{'' if is_tree else f' {text}'}{remark}", (*above, key)
        if is_tree:
            yield from _lines(value.items() if isinstance(value, dict) else enumerate(value), (*above, key), said)
