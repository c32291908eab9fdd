"""What is known to go wrong in scripts, manifests and compose files that others wrote.

Reading order: shell.py and manifest.py (what the rules see), rules.py (what a rule is), then the rules themselves in
scripts.py, torchrun.py, secrets.py, kubernetes.py and compose.py.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from jobspec import source
from jobspec.lint import compose, kubernetes, scripts, secrets, torchrun
from jobspec.lint.manifest import Node, documents
from jobspec.lint.rules import LintRule, rules_in
from jobspec.lint.shell import Script
from jobspec.problems import Place, Problem, SpecError

_IN_SCRIPTS: list[LintRule[Script]] = rules_in(scripts, torchrun, secrets)
_IN_MANIFESTS: list[LintRule[Node]] = rules_in(kubernetes)
_IN_COMPOSE: list[LintRule[Node]] = rules_in(compose)


def rule_names() -> list[str]:
    """All rules, sorted."""
    return sorted(rule.name for rules in (_IN_SCRIPTS, _IN_MANIFESTS, _IN_COMPOSE) for rule in rules)


def lint(files: Sequence[str]) -> list[Problem]:
    """Every fault in some files, by file and place.

    A file that is neither script nor YAML is a problem, too.  Raises OSError if one cannot be read.
    """
    return [problem for file in files for problem in sorted(set(_lint(file)), key=_order)]


def _lint(file: str) -> Iterator[Problem]:
    try:
        text = source.read(file)
        if file.endswith((".yaml", ".yml")):
            yield from _lint_yaml(text, file)
        elif "\0" in text:
            yield Problem(Place(file, 1, 1, 1, ""), "neither a script nor YAML")
        else:
            yield from _lint_script(_script(text, file))
    except SpecError as error:
        yield from error.problems


def _order(problem: Problem) -> tuple[int, int, str]:
    return problem.place.line, problem.place.column, problem.message


def _lint_script(script: Script) -> Iterator[Problem]:
    for rule in _IN_SCRIPTS:
        yield from rule.problems(script)


def _lint_yaml(text: str, file: str) -> Iterator[Problem]:
    found = documents(text, file)
    for document in found:
        if document.get("kind"):
            yield from _apply(_IN_MANIFESTS, document, kubernetes.scripts_in(document))
        elif document.get("services"):
            yield from _apply(_IN_COMPOSE, document, compose.scripts_in(document))
    if not any(document.get("kind") or document.get("services") for document in found):
        yield Problem(Place(file, 1, 1, 1, text.split("\n", 1)[0]), "neither a Kubernetes manifest nor a compose file")


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
