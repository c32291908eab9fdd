"""What a lint rule is.  Rules stand in the other files of this folder, one function each, and register by being there.

A rule's name is its function's, with dashes: it is in the message and names its examples in tests/lint/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from jobspec.problems import Place, Problem

Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Fault:
    """Where a rule is broken, why that matters, and what to write instead."""

    place: Place
    reason: str
    fix: str


@dataclass(frozen=True)
class LintRule(Generic[Subject]):
    """A check of a script, a manifest or a compose service; `link` leads to people whom the fault has met."""

    name: str
    link: str
    check: Callable[[Subject], Iterable[Fault]]

    def problems(self, subject: Subject) -> Iterable[Problem]:
        for fault in self.check(subject):
            yield Problem(fault.place, f"{fault.reason} [{self.name}]", fault.fix, self.link)


def rule(link: str) -> Callable[[Callable[[Subject], Iterable[Fault]]], LintRule[Subject]]:
    """Make a function a rule."""

    def made(check: Callable[[Subject], Iterable[Fault]]) -> LintRule[Subject]:
        return LintRule(check.__name__.replace("_", "-"), link, check)

    return made


def rules_in(*modules: object) -> list[LintRule[Subject]]:
    """Every rule that the modules define, in their order."""
    return [value for module in modules for value in vars(module).values() if isinstance(value, LintRule)]
