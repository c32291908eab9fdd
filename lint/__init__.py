"""Find known faults in scripts, manifests and compose files that others wrote.

Reading order: what the rules see (lexer.py, sbatch.py, shell.py, steps.py; manifest.py, pods.py), rules.py (what a
rule is), then the rules themselves in directives.py, scripts.py, launch.py, torchrun.py, secrets.py, kubernetes.py,
pytorchjob.py and compose.py.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from jobspec.problems import Place, Problem, SpecError
from jobspec.reading import yaml_source
from lint import compose, directives, kubernetes, launch, pytorchjob, scripts, secrets, torchrun
from lint.manifest import Node, documents
from lint.pods import scripts_in, templates
from lint.rules import LintRule, rules_in
from lint.secrets import hide_secrets
from lint.shell import Script

_IN_SCRIPTS: list[LintRule[Script]] = rules_in(directives, scripts, launch, torchrun, secrets)
_IN_MANIFESTS: list[LintRule[Node]] = rules_in(kubernetes, pytorchjob)
_IN_COMPOSE: list[LintRule[Node]] = rules_in(compose)


_YAML = (".yaml", ".yml", ".json")
_SHELLS = (".sh", ".bash", ".sbatch", ".slurm", ".job")
_SHELL = re.compile(r"#!.*[/ ](?:ba|da|k|z)?sh\b")
_IS_YAML = re.compile(r"^(?:apiVersion|services):", re.M)
_IN_FOLDERS = (".sh", ".sbatch", ".slurm", ".yaml", ".yml")
_UNKNOWN = "lint does not know this kind of file"
_NO_MANIFEST = "neither a Kubernetes manifest nor a compose file"
_READS = (
    f"lint reads shell scripts ({', '.join(_SHELLS)}, or a first line such as #!/bin/bash), "
    f"Kubernetes manifests and compose files ({', '.join(_YAML)})"
)


def rule_names() -> list[str]:
    """List the names of all rules, sorted."""
    return sorted(rule.name for rules in (_IN_SCRIPTS, _IN_MANIFESTS, _IN_COMPOSE) for rule in rules)


def lint(paths: Sequence[str], skipped: list[str] | None = None) -> list[Problem]:
    """Return every fault in some files and in the files of some folders, sorted by file and place; each file once.

    A file that lint does not understand is a problem too.  In a folder it is skipped instead, and added to `skipped`.
    Raises OSError if a file cannot be read.
    """
    problems: list[Problem] = []
    given = {os.path.realpath(path) for path in paths}  # a file that was named is never skipped, wherever it is
    done: set[str] = set()
    for path in paths:
        is_folder = Path(path).is_dir()
        files = files_in(path) if is_folder else [path]
        if not files:
            problems.append(
                Problem(Place(path, 1, 1, 1, ""), f"no file in this folder ends in {' or '.join(_IN_FOLDERS)}")
            )
        for file in files:
            really = os.path.realpath(file)
            if really in done or (is_folder and really in given):
                continue
            done.add(really)
            found = hide_secrets(sorted(set(_lint(file)), key=_order))
            if is_folder and any(problem.message in (_UNKNOWN, _NO_MANIFEST) for problem in found):
                (skipped if skipped is not None else []).append(file)
            else:
                problems += found
    return problems


def files_in(folder: str) -> list[str]:
    """Return the files that lint reads in a folder and the folders below it, sorted, without hidden ones."""
    files: list[str] = []
    for above, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [str(Path(above, name)) for name in names if not name.startswith(".") and name.endswith(_IN_FOLDERS)]
    return sorted(file for file in files if Path(file).is_file())  # no pipes and no broken links


def _lint(file: str) -> Iterator[Problem]:
    try:
        text = yaml_source.read(file)
        suffix = Path(file).suffix
        if suffix in _YAML or (not suffix and _IS_YAML.search(text)):
            yield from _lint_yaml(text, file)
        elif "\0" not in text and _is_shell(text, suffix):
            yield from _lint_script(_script(text, file))
        else:
            yield Problem(_start(file, text), _UNKNOWN, _READS)
    except SpecError as error:
        yield from error.problems
    except RecursionError:
        yield Problem(_start(file, text), "its brackets and quotes are nested too deeply for lint")


def _is_shell(text: str, suffix: str) -> bool:
    """Return True for a shell script, judged by its first line, its name or its #SBATCH lines."""
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
        hint = (
            f"check a job spec with `render.py TARGET {file}`; lint checks what was rendered from it"
            if ours
            else _READS
        )
        yield Problem(_start(file, text), _NO_MANIFEST, hint)


def _items(document: Node) -> list[Node]:
    """Return the objects of a List, as `kubectl get -o yaml` prints it; any other object alone."""
    return document.elements("items") if document.text("kind") == "List" else [document]


def _not_looked_into(document: Node) -> Iterator[Problem]:
    kind = document.get("kind")
    if kind and document.has("containers") and not any(templates(document)) and kind.text() != "TrainJob":
        message = f"lint does not know where the pods of a {kind.text()} are, so they were not checked"
        yield Problem(kind.place, message, "give lint the pod template as a Pod, and the pod's script as a file")


def _apply(rules: Iterable[LintRule[Node]], document: Node, scripts: Iterable[Script]) -> Iterator[Problem]:
    for rule in rules:
        yield from rule.problems(document)
    for script in scripts:
        yield from _lint_script(replace(script, in_container=True))


def _script(text: str, file: str) -> Script:
    lines = text.split("\n")
    begins = [match.end() for match in re.finditer("^|\n", text)]

    def locate(start: int, length: int) -> Place:
        number = bisect_right(begins, start) - 1
        column = start - begins[number]
        line = lines[number].rstrip("\r")
        return Place(file, number + 1, column + 1, max(1, min(length, len(line) - column)), line)

    return Script.parse(text, locate)
