"""Makes the pages in docs/reference/ from the models: `python -m docs.make_reference`, or `make render`.

Examples of values come from the specs of the repository, so each is valid.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from jobspec import targets
from jobspec.artifact import load
from jobspec.environment import SetBy
from jobspec.problems import SpecError
from jobspec.spec.job import Job
from jobspec.spec.schema import example
from jobspec.spec.value import Section, Value
from train.config import TrainConfig, choices, flag

ROOT = Path(__file__).parents[1]
_SPECS = ("jobs/*.yaml", "sites/*.yaml", "tests/specs/ok/*.yaml")
_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}
_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
# Together these jobs have every variable that some target sets.
_JOBS = [
    ["nodes=2", "device=cuda", "preemption={}", "max_restarts=1"],
    ["nodes=2", "device=cuda", "resources.rdma=true", "kubernetes={security: privileged, rdma_resource: rdma/hca}"],
    ["nodes=1", "command=", "train.model=mlp"],
    ["nodes={min: 1, max: 2}", "time_limit="],
    ["nodes=2", "slurm.launcher=srun"],
    ["nodes=2", "slurm.array=0-1", "slurm.srun_options.label=true"],
]
_DOCUMENTED = (ast.Module, ast.FunctionDef)
_EXIT_CODES = {
    "render-job": "jobspec/commands.py",
    "python -m train": "train/__main__.py",
    "python -m train.doctor": "train/doctor.py",
    "python -m train.report": "train/report.py",
    "python -m train.datasets.tokens": "train/datasets/tokens.py",
}


def pages(root: Path = ROOT) -> dict[str, str]:
    """Return the text of each page by its file name."""
    content = {"keys": _keys(root), "flags": _flags(), "variables": _variables(root), "exit-codes": _exit_codes(root)}
    return {f"{name}.md": _page(lines) for name, lines in content.items()}


def _page(lines: Iterator[str]) -> str:
    head = next(lines)
    return "\n".join([f"# {head}", "", "Made from the models by `make render`.", "", *lines, ""])


def _row(*cells: str) -> str:
    return " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells)


def _keys(root: Path) -> Iterator[str]:
    yield "Keys of a job spec"
    examples: dict[str, str] = {}
    for pattern in _SPECS:
        for file in sorted(root.glob(pattern)):
            for key, value in _given(yaml.safe_load(file.read_text())):
                examples.setdefault(key, value)
    yield 'Required keys have the default "required". A list shows `[]` in its keys.'
    yield from ["", _row("key", "type", "default", "used by", "meaning", "example"), "---|---|---|---|---|---"]
    for key, field in _fields(Job):
        words, text = _type(field.annotation, field.metadata), field.description or ""
        default = "required" if field.is_required() else _text(field.default, "s" if words.startswith("a time") else "")
        given = examples.get(key.replace("[]", ""), example(text))
        yield _row(f"`{key}`", words, default, _used_by(key), text, f"`{given}`" if given else "")
    yield from ["", "The keys of `train` are the [flags of `python -m train`](flags.md), with `_` for `-`."]


def _fields(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        yield f"{above}{name}", field
        inner, many = _section(field.annotation)
        if inner is not None:
            yield from _fields(inner, f"{above}{name}{'[]' * many}.")


def _section(annotation: Any) -> tuple[type[Section] | None, bool]:
    """Return the section that an annotation holds, and whether it holds a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation, False
    found = ((_section(part)[0], get_origin(annotation) is list) for part in get_args(annotation))
    return next((one for one in found if one[0] is not None), (None, False))


def _type(annotation: Any, metadata: list[Any]) -> str:
    for one in metadata:
        if isinstance(one, Value):
            return one.expected
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(map(str, parts))
    if hasattr(annotation, "__metadata__"):
        return _type(annotation.__origin__, list(annotation.__metadata__))
    if _section(annotation)[0] is not None and origin is not list:
        return "mapping"
    if origin is list:
        return f"list; each element: {_type(parts[0], [])}"
    if origin is dict:
        return "mapping"
    if parts:
        return _type(next(part for part in parts if part is not type(None)), metadata)
    limits = [
        f"{word} {getattr(one, name)}" for one in metadata for name, word in _LIMITS.items() if hasattr(one, name)
    ]
    return ", ".join([_WORDS.get(annotation, "mapping"), *limits])


def _text(default: Any, unit: str = "") -> str:
    if default is None or isinstance(default, Section):
        return ""
    return f"`{default if isinstance(default, str) else json.dumps(default)}{unit}`"


def _used_by(key: str) -> str:
    bare = key.partition("[]")[0]
    using = {
        name
        for name in targets.names()
        for one in targets.load(name).uses
        if f"{one}.".startswith(f"{bare}.") or (bare.startswith(f"{one}.") and bare not in targets.load(name).not_used)
    }
    return _named(using)


def _named(some: set[str]) -> str:
    """Return the names of targets; the four Kubernetes kinds as one, if all are there."""
    kinds = {"indexedjob", "jobset", "pytorchjob", "trainjob"}
    if some == set(targets.names()):
        return "all"
    return ", ".join(sorted(some - kinds | {"Kubernetes"} if kinds <= some else some))


def _given(node: Any, above: str = "") -> Iterator[tuple[str, str]]:
    """Yield each key of a parsed spec with its value as YAML in one line."""
    for key, value in (node or {}).items():
        path = f"{above}{key}".replace("+", "")
        if len(text := yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()) < 90:
            yield path, text
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Mapping):
                yield from _given(one, f"{path}.")


def _flags() -> Iterator[str]:
    yield "Flags of `python -m train`"
    yield "Each is also a key of `train:` in a job spec, with `_` for `-`."
    yield "`--procs N` (start N processes here) is a flag only."
    yield from ["", _row("flag", "type", "default", "meaning"), "---|---|---|---"]
    for key, field in TrainConfig.model_fields.items():
        words = " or ".join(choices(key)) or _type(field.annotation, [m for m in field.metadata if not callable(m)])
        name = f"`{flag(key)}`" + (f", `{flag('no_' + key)}`" if field.annotation is bool else "")
        yield _row(name, words, _text(field.default), field.description or "")


def _variables(root: Path) -> Iterator[str]:
    yield "Environment variables of a process"
    yield "Who sets each variable, and on which targets: `script` is the artifact itself, `person` whoever starts it."
    yield "The last in a row wins. `env` and `secrets` of the spec come on top: `render-job explain` shows all."
    yield "Where nobody has set them, `python -m train` and the torchrun script of several nodes set"
    yield "`GLOO_SOCKET_IFNAME` and, for GPUs on several hosts, `NCCL_SOCKET_IFNAME`."
    yield "`--deterministic` sets `CUBLAS_WORKSPACE_CONFIG`."
    yield from ["", _row("variable", "set by", "value, for example"), "---|---|---"]
    setters: dict[str, dict[str, set[str]]] = {}
    values: dict[str, str] = {}
    for overrides in _JOBS:
        for name in targets.names():
            target = targets.load(name)
            try:
                plan = load(target, [str(root / "jobs" / "own-script.yaml")], overrides)
            except SpecError:
                continue
            found = target.environment(plan, list(plan.ranks())[-1])
            for variable in (variable for variable in found if variable.set_by != "spec"):
                setters.setdefault(variable.name, {}).setdefault(variable.set_by, set()).add(name)
                values.setdefault(variable.name, variable.value)
    for name, by in sorted(setters.items()):
        words = [f"{one}: {_named(by[one])}" for one in get_args(SetBy) if one in by]
        yield _row(f"`{name}`", "; ".join(words), f"`{values[name]}`")


def _exit_codes(root: Path) -> Iterator[str]:
    yield "Exit codes"
    yield from [_row("command", "exit codes"), "---|---"]
    for command, file in _EXIT_CODES.items():
        tree = ast.parse((root / file).read_text())
        texts = [ast.get_docstring(node) or "" for node in [tree, *tree.body] if isinstance(node, _DOCUMENTED)]
        found = re.search(r"[Ee]xit codes?: ((?:.+\n?)+)", "\n\n".join(texts))
        yield _row(f"`{command}`", found[1] if found else "")
    yield from ["", "torchrun ends with 1 whatever code its process had; 128 + N, or -N in its table, is signal N."]


if __name__ == "__main__":
    for file, text in pages().items():
        (ROOT / "docs" / "reference" / file).write_text(text)
