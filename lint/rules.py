"""Find what breaks a rule, and show it: as text, as JSON, as annotations of GitHub Actions, as SARIF 2.1.0.

A rule is a row of rules.md (severity, what happens, the mend, a report) and a function of its name, with underscores,
that yields each Fault.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jobspec.problems import Place, Problem, as_json, report
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


def findings(subject: Any, *modules: object) -> Iterator[Finding]:
    """Yield what the rules in some modules find."""
    for name, grade, _, mend, link in entries().values():
        for module in modules:
            check = getattr(module, name.replace("-", "_"), None)
            for place, reason, fix in check(subject) if check else ():
                where = subject.place(place) if isinstance(place, Text) else place
                yield Finding(where, f"{reason} [{name}]", fix or mend, link, grade, name)


def shown(found: Sequence[Finding], format: str, rules: Sequence[Entry]) -> str:
    """Return findings in a format; as text nothing if there are none."""
    if format == "text":
        told = [replace(each, message=f"{each.severity}: {each.message}") for each in found]
        return f"{report(told, '', most=None)}\n" if found else ""
    if format == "github":
        return "".join(map(_annotation, found))
    return as_json(found) if format == "json" else json.dumps(_sarif(found, rules), indent=2, ensure_ascii=False) + "\n"


def _told(each: Finding) -> str:
    return each.message + (f"\nhint: {each.hint}" if each.hint else "")


def _annotation(each: Finding) -> str:
    place, escaped = each.place, str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
    name = place.name.translate(escaped).replace(":", "%3A").replace(",", "%2C")
    where = f"file={name},line={place.line},col={place.column},endColumn={place.column + place.length}"
    return f"::{each.severity} {where},title={each.rule or 'unreadable'}::{_told(each).translate(escaped)}\n"


def _sarif(found: Sequence[Finding], rules: Sequence[Entry]) -> dict[str, object]:
    described = [{"id": name, "shortDescription": {"text": why}, "helpUri": link} for name, _, why, _, link in rules]
    driver = {"name": "render.py lint", "rules": described}
    run = {"tool": {"driver": driver}, "results": [*map(_result, found)], "columnKind": "unicodeCodePoints"}
    return {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}


def _result(each: Finding) -> dict[str, object]:
    place, told = each.place, {"text": _told(each)}
    region = {"startLine": place.line, "startColumn": place.column, "endColumn": place.column + place.length}
    where = {"physicalLocation": {"artifactLocation": {"uri": Path(place.name).as_posix()}, "region": region}}
    return {"ruleId": each.rule or "unreadable", "level": each.severity, "message": told, "locations": [where]}


def listed(rules: Sequence[Entry]) -> str:
    """Return every rule on a line: severity, name and the first sentence of why."""
    width = max(len(each.name) for each in rules)
    rows = [f"{each.severity:7}  {each.name:{width}}  {each.explanation.partition('. ')[0]}" for each in rules]
    return "".join(row.rstrip(".") + "\n" for row in rows)


def explained(each: Entry) -> str:
    return f"{each.name} ({each.severity})\n{each.explanation}\nmend: {each.fix}\nsee: {each.link}\n"
