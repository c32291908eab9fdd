"""Define what a lint rule is.  Each rule is a function in another file of this folder; `rules_in` finds it there.

A rule's name is its function's name with dashes.  Messages show it, and its example in tests/lint/ carries it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from jobspec.problems import Place, Problem

Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Fault:
    """A place where a rule is broken, why that matters, and what to write instead."""

    place: Place
    reason: str
    fix: str


@dataclass(frozen=True)
class LintRule(Generic[Subject]):
    """A check of a script, a manifest or a compose service; `link` leads to reports of the fault."""

    name: str
    link: str
    check: Callable[[Subject], Iterable[Fault]]

    def problems(self, subject: Subject) -> Iterable[Problem]:
        for fault in self.check(subject):
            yield Problem(fault.place, f"{fault.reason} [{self.name}]", fault.fix, self.link)


def rule(link: str) -> Callable[[Callable[[Subject], Iterable[Fault]]], LintRule[Subject]]:
    """Turn a function into a rule."""

    def made(check: Callable[[Subject], Iterable[Fault]]) -> LintRule[Subject]:
        return LintRule(check.__name__.replace("_", "-"), link, check)

    return made


def number(text: str) -> int | None:
    """Return a whole number as written in a file; None for a variable, another text or more than 9 digits."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def rules_in(*modules: object) -> list[LintRule[Subject]]:
    """Return every rule that the modules define, in their order."""
    return [value for module in modules for value in vars(module).values() if isinstance(value, LintRule)]
