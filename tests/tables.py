"""Cases of tests as YAML tables, one a file: {name: {cell: text}}.  `pytest --update` writes the messages anew."""

import fcntl
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from jobspec.problems import Problem, printable

# What a spec needs besides the keys that a case is about.
_BASE = {"name": "job", "nodes": "1", "procs_per_node": "2", "device": "cpu", "command": "[mine.py]"}


class Case(NamedTuple):
    """A row of a table."""

    table: Path
    name: str
    cells: dict[str, Any]

    def __str__(self) -> str:
        return self.name

    @property
    def spec(self) -> str:
        """The whole spec: the cell `spec`, or the cell `keys` and below it what else a spec needs."""
        return str(self.cells["spec"]) if "spec" in self.cells else spec_with(self.cells["keys"])


def spec_with(keys: str) -> str:
    """Return these lines, and below them what else a spec needs."""
    given = re.findall(r"^(\w+):", keys, re.MULTILINE)
    if "train" in given:
        given.append("command")
    return keys + "".join(f"{key}: {value}\n" for key, value in _BASE.items() if key not in given)


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as it is in a file."""


_Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, "|" if "\n" in text else None)
)


def cases(folder: Path) -> list[Case]:
    """Return every case of the tables in a folder."""
    found = []
    for table in sorted(folder.glob("*.yaml")):
        text = table.read_text()
        rows = yaml.safe_load(text)
        assert len(rows) == len(re.findall("^[^ #\n]", text, re.MULTILINE)), f"{table}: a name is given twice"
        found += [Case(table, name, cells) for name, cells in rows.items()]
    return found


def update(case: Case, cell: str, text: str) -> None:
    """Write a cell of a table anew; the comments above the first case stay."""
    with case.table.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        old = file.read()
        rows = yaml.safe_load(old)
        if rows[case.name].get(cell) != text:
            rows[case.name][cell] = text
            head = re.match("(#.*\n)*", old)
            assert head
            file.seek(0)
            file.truncate()
            file.write(head[0] + yaml.dump(rows, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=10_000))


def in_short(problems: Sequence[Problem], text: str) -> str:
    """Return problems of a file that holds `text`, without its lines: `line:first column-last column: message`.

    Links are left out, and a hint that stands there already; a line that is shown otherwise than it is in the file,
    because of a secret, is quoted.
    """
    lines = text.splitlines()
    words: list[str] = []
    for problem in problems:
        place = problem.place
        words.append(f"{place.line}:{place.column}-{place.column + place.length - 1}: {printable(problem.message)}")
        if place.text != (lines[place.line - 1] if place.line <= len(lines) else ""):
            words.append(f"  shown: {place.text.strip()}")
        hint = f"  hint: {printable(problem.hint)}"
        if hint in words:
            words[-1] += " (hint above)"
        elif problem.hint:
            words.append(hint)
    return "\n".join(words)
