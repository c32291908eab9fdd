"""Define what a lint rule is.  Each rule is a function in another file of this folder; `rules_in` finds it there.

A rule's name is its function's name with dashes.  Its severity, what happens, the mend and a report stand in rules.md;
two functions with one name are one rule for two kinds of files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from jobspec.problems import Place, Problem

Subject = TypeVar("Subject")
ERROR, WARNING = "error", "warning"


class Fault(NamedTuple):
    """A place where a rule is broken, what happens there, and what to write instead of what rules.md says."""

    place: Place
    reason: str
    fix: str = ""


@dataclass(frozen=True)
class Finding(Problem):
    """A problem that a rule found; without a rule, a file that could not be read.

    severity: error if the job breaks, hangs, wastes GPUs or leaks; warning if it breaks under load, at scale, or on
    another cluster.
    """

    rule: str = ""
    severity: str = ERROR


class Entry(NamedTuple):
    """A row of rules.md."""

    name: str
    severity: str
    explanation: str
    fix: str
    link: str


@cache
def entries() -> dict[str, Entry]:
    """Return the rows of rules.md by name, errors first."""
    rows = Path(__file__).with_name("rules.md").read_text(encoding="utf-8").splitlines()[2:]
    cells = [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    found = [Entry(name, grade, why, fix, f"https://github.com/{link}") for name, grade, why, fix, link in cells]
    return {entry.name: entry for entry in sorted(found, key=lambda entry: entry.severity)}


@dataclass(frozen=True)
class LintRule(Generic[Subject]):
    """A check of a script or of a manifest."""

    check: Callable[[Subject], Iterable[Fault]]

    @property
    def name(self) -> str:
        return self.check.__name__.replace("_", "-")

    def findings(self, subject: Subject) -> Iterator[Finding]:
        entry = entries()[self.name]
        for place, reason, fix in self.check(subject):
            yield Finding(place, f"{reason} [{self.name}]", fix or entry.fix, entry.link, self.name, entry.severity)


def rule(check: Callable[[Subject], Iterable[Fault]]) -> LintRule[Subject]:
    """Turn a function into a rule."""
    return LintRule(check)


def rules_in(*modules: object) -> list[LintRule[Subject]]:
    """Return every rule that the modules define, in their order."""
    return [value for module in modules for value in vars(module).values() if isinstance(value, LintRule)]
