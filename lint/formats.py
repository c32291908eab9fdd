"""Show findings: as text, as JSON, as annotations of GitHub Actions, as SARIF 2.1.0; and the rules themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jobspec.problems import report
from lint.rules import Entry, Finding

FORMATS = ("text", "json", "github", "sarif")


def shown(found: Sequence[Finding], format: str, rules: Sequence[Entry]) -> str:
    """Return findings in a format; as text nothing if there are none."""
    if format == "text":
        told = [replace(each, message=f"{each.severity}: {each.message}") for each in found]
        return f"{report(told, '', most=None)}\n" if found else ""
    if format == "github":
        return "".join(map(_annotation, found))
    return (
        json.dumps(_sarif(found, rules) if format == "sarif" else [*map(_record, found)], indent=2, ensure_ascii=False)
        + "\n"
    )


def _record(each: Finding) -> dict[str, object]:
    place = {"file": each.place.name, "line": each.place.line, "column": each.place.column, "length": each.place.length}
    said = {"message": each.message, "hint": each.hint, "link": each.link}
    return {**place, "rule": each.rule, "severity": each.severity, **said}


def _annotation(each: Finding) -> str:
    def escaped(text: str) -> str:
        return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    place = each.place
    name = escaped(place.name).replace(":", "%3A").replace(",", "%2C")
    where = f"file={name},line={place.line},col={place.column},endColumn={place.column + place.length}"
    hint = f"\nhint: {each.hint}" if each.hint else ""
    return f"::{each.severity} {where},title={each.rule or 'unreadable'}::{escaped(each.message + hint)}\n"


def _sarif(found: Sequence[Finding], rules: Sequence[Entry]) -> dict[str, object]:
    described = [
        {"id": each.name, "shortDescription": {"text": each.explanation}, "helpUri": each.link} for each in rules
    ]
    driver = {"name": "render.py lint", "rules": described}
    run = {"tool": {"driver": driver}, "results": [*map(_result, found)], "columnKind": "unicodeCodePoints"}
    return {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}


def _result(each: Finding) -> dict[str, object]:
    place, hint = each.place, f"\nhint: {each.hint}" if each.hint else ""
    region = {"startLine": place.line, "startColumn": place.column, "endColumn": place.column + place.length}
    where = {"artifactLocation": {"uri": Path(place.name).as_posix()}, "region": region}
    told = {"text": each.message + hint}
    rule = each.rule or "unreadable"
    return {"ruleId": rule, "level": each.severity, "message": told, "locations": [{"physicalLocation": where}]}


def listed(rules: Sequence[Entry]) -> str:
    """Return every rule on a line: severity, name and the first sentence of why."""
    width = max(len(each.name) for each in rules)
    return "".join(
        f"{each.severity:7}  {each.name:{width}}  {each.explanation.partition('. ')[0].rstrip('.')}\n" for each in rules
    )


def explained(each: Entry) -> str:
    return f"{each.name} ({each.severity})\n{each.explanation}\nmend: {each.fix}\nsee: {each.link}\n"


def as_markdown(rules: Sequence[Entry]) -> str:
    """Return the rules as a page of the docs."""
    rows = "".join(
        f"| `{each.name}` | {each.severity} | {_cell(each.explanation)} | {_cell(each.fix)} | [report]({each.link}) |\n"
        for each in rules
    )
    return (
        "# Lint rules\n\n<!-- made by `python -m lint.formats`; do not edit -->\n\n"
        "An error: the job breaks, hangs, wastes GPUs or leaks. A warning: it breaks under load, at scale, or on "
        "another cluster. `# lint: ignore=RULE` at the end of a line, or alone on a line for the whole file, switches "
        "a rule off. Names that begin with SC are ShellCheck's, where it is installed.\n\n"
        f"| rule | severity | what happens | mend | source |\n|---|---|---|---|---|\n{rows}"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    from lint import entries

    print(as_markdown(list(entries().values())), end="")
