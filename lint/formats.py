"""Show findings: as text, as JSON, as annotations of GitHub Actions, as SARIF 2.1.0; and the rules themselves."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jobspec.problems import as_json, report
from lint.rules import Entry, Finding


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
