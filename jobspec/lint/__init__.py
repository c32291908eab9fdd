"""What is known to go wrong in scripts, manifests and compose files that others wrote.

Reading order: what the rules see (lexer.py, sbatch.py, shell.py; manifest.py, pods.py), rules.py (what a rule is), then
the rules themselves in directives.py, scripts.py, torchrun.py, secrets.py, kubernetes.py, pytorchjob.py and compose.py.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from jobspec import source
from jobspec.lint import compose, directives, kubernetes, pytorchjob, scripts, secrets, torchrun
from jobspec.lint.manifest import Node, documents
from jobspec.lint.pods import scripts_in, templates
from jobspec.lint.rules import LintRule, rules_in
from jobspec.lint.shell import Script
from jobspec.problems import Place, Problem, SpecError

_IN_SCRIPTS: list[LintRule[Script]] = rules_in(directives, scripts, torchrun, secrets)
_IN_MANIFESTS: list[LintRule[Node]] = rules_in(kubernetes, pytorchjob)
_IN_COMPOSE: list[LintRule[Node]] = rules_in(compose)


_YAML = (".yaml", ".yml", ".json")
_SHELLS = (".sh", ".bash", ".sbatch", ".slurm", ".job")
_SHELL = re.compile(r"#!.*[/ ](?:ba|da|k|z)?sh\b")
_IS_YAML = re.compile(r"^(?:apiVersion|services):", re.M)
_READS = (
    f"it reads shell scripts ({', '.join(_SHELLS)}, or a first line such as #!/bin/bash), "
    f"Kubernetes manifests and compose files ({', '.join(_YAML)})"
)


def rule_names() -> list[str]:
    """All rules, sorted."""
    return sorted(rule.name for rules in (_IN_SCRIPTS, _IN_MANIFESTS, _IN_COMPOSE) for rule in rules)


def lint(files: Sequence[str]) -> list[Problem]:
    """Every fault in some files, by file and place.

    A file that lint does not understand is a problem, too.  Raises OSError if one cannot be read.
    """
    return [problem for file in files for problem in sorted(set(_lint(file)), key=_order)]


def _lint(file: str) -> Iterator[Problem]:
    try:
        text = source.read(file)
        suffix = Path(file).suffix
        if suffix in _YAML or (not suffix and _IS_YAML.search(text)):
            yield from _lint_yaml(text, file)
        elif "\0" not in text and _is_shell(text, suffix):
            yield from _lint_script(_script(text, file))
        else:
            yield Problem(_start(file, text), "lint does not know what this is", _READS)
    except SpecError as error:
        yield from error.problems


def _is_shell(text: str, suffix: str) -> bool:
    """Whether a file is a shell script, by its first line or else by its name or by what it asks sbatch for."""
    if text.startswith("#!"):
        return _SHELL.match(text) is not None
    return suffix in _SHELLS or re.search(r"^#SBATCH\s", text, re.M) is not None


def _start(file: str, text: str) -> Place:
    return Place(file, 1, 1, 1, text.split("\n", 1)[0])


def _order(problem: Problem) -> tuple[int, int, str]:
    return problem.place.line, problem.place.column, problem.message


def _lint_script(script: Script) -> Iterator[Problem]:
    for rule in _IN_SCRIPTS:
        yield from rule.problems(script)


def _lint_yaml(text: str, file: str) -> Iterator[Problem]:
    found = [document for each in documents(text, file) for document in _items(each)]
    for document in found:
        if document.get("kind"):
            yield from _apply(_IN_MANIFESTS, document, scripts_in(document))
            yield from _not_looked_into(document)
        elif document.get("services"):
            yield from _apply(_IN_COMPOSE, document, compose.scripts_in(document))
    if not any(document.get("kind") or document.get("services") for document in found):
        ours = any(document.get("procs_per_node") or document.get("nodes") for document in found)
        hint = f"a job spec is checked by `render.py TARGET {file}`, what was made of it by lint" if ours else _READS
        yield Problem(_start(file, text), "neither a Kubernetes manifest nor a compose file", hint)


def _items(document: Node) -> list[Node]:
    """The objects of a List, as `kubectl get -o yaml` prints it; of anything else itself."""
    return document.elements("items") if document.text("kind") == "List" else [document]


def _not_looked_into(document: Node) -> Iterator[Problem]:
    kind = document.get("kind")
    if kind and document.has("containers") and not any(templates(document)) and kind.text() != "TrainJob":
        message = f"lint does not know where the pods of kind {kind.text()} are, and has not looked into them"
        yield Problem(kind.place, message, "give it the pod template as a Pod, and its script as a file")


def _apply(rules: Iterable[LintRule[Node]], document: Node, scripts: Iterable[Script]) -> Iterator[Problem]:
    for rule in rules:
        yield from rule.problems(document)
    for script in scripts:
        yield from _lint_script(script)


def _script(text: str, file: str) -> Script:
    lines = text.split("\n")
    begins = [match.end() for match in re.finditer("^|\n", text)]

    def locate(start: int, length: int) -> Place:
        number = bisect_right(begins, start) - 1
        column = start - begins[number]
        line = lines[number].rstrip("\r")
        return Place(file, number + 1, column + 1, max(1, min(length, len(line) - column)), line)

    return Script.parse(text, locate)
