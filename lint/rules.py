"""Find what breaks a rule.

A rule is a row of rules.md (severity, what happens, the mend, a report) and a function of its name, with underscores,
that yields each Fault: in nodes.py, slurm.py, secrets.py or checkers.py for scripts, in kubernetes.py for manifests
and compose files.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jobspec.problems import Place, Problem
from lint.words import Text

ERROR, WARNING = "error", "warning"


class Fault(NamedTuple):
    """A place where a rule is broken, what happens there, and what to write instead of what rules.md says."""

    place: Place | Text
    reason: str
    fix: str = ""


@dataclass(frozen=True)
class Finding(Problem):
    """A problem that a rule found; without a rule, a file that could not be read.  severity: as docs/lint.md says."""

    rule: str = ""


class Entry(NamedTuple):  # a row of rules.md
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


def findings(subject: Any, *modules: object) -> Iterator[Finding]:
    for name, grade, _, mend, link in entries().values():
        for module in modules:
            check = getattr(module, name.replace("-", "_"), None)
            for place, reason, fix in check(subject) if check else ():
                where = subject.place(place) if isinstance(place, Text) else place
                yield Finding(where, f"{reason} [{name}]", fix or mend, link, grade, name)
