"""Report what is wrong with a file: `file:line:column: message`, the source line, a caret and a hint."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

Path = tuple[str | int, ...]  # keys and list positions from the root of a spec: ("mounts", 0, "path")
_MOST_SHOWN = 20  # problems; the user fixes these and runs the command again
_WIDEST = 100  # columns of a source line that are shown


@dataclass(frozen=True)
class Place:
    """A piece of one line of a file (option 0) or of the n-th option as typed; `line` and `column` count from 1."""

    name: str
    line: int
    column: int
    length: int
    text: str
    option: int = 0

    @property
    def written(self) -> str:
        """The piece exactly as it was written."""
        return self.text[self.column - 1 : self.column - 1 + self.length]


@dataclass(frozen=True)
class Finding:
    """A mistake at a key of the spec, before its place in the file is looked up."""

    path: Path
    message: str
    hint: str = ""
    on_key: bool = False


@dataclass(frozen=True)
class Problem:
    """A mistake at a place."""

    place: Place
    message: str
    hint: str = ""


class SpecError(Exception):
    """The spec is wrong.  `problems` holds every mistake that the function found, not only the first."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(dict.fromkeys(problems), key=_order)
        super().__init__(report(self.problems))


def report(problems: Sequence[Problem]) -> str:
    """Return the first problems as text for a terminal.  The last line has the number of all, and no newline."""
    blocks = [_block(problem) for problem in problems[:_MOST_SHOWN]]
    if len(problems) > len(blocks):
        blocks.append(f"… and {len(problems) - len(blocks)} more")
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return "\n".join([*blocks, f"{count}; nothing was written"])


def option_place(option: str, value: str, number: int = 1) -> Place:
    """Return the place of an option's whole value."""
    typed = value if len(value) <= _WIDEST else f"{value[: _WIDEST - 1]}…"
    return Place(f"{option} {typed}", 1, 1, max(1, len(value)), value, number)


def key_of(typed: str) -> str:
    """Return the key of KEY=VALUE, also if another sign stands for `=`."""
    return re.split(r"[=:\s]", typed, maxsplit=1)[0]


def masked(place: Place, stays: str) -> Place:
    """Return the place without its line, which may hold a secret's value; of its piece, only `stays` is left."""
    option, _, typed = place.name.partition(" ")
    name = f"{option} {key_of(typed)}=…" if place.option else place.name
    return replace(place, name=name, length=max(1, len(stays)), text=f"{' ' * (place.column - 1)}{stays}…")


def printable(text: str) -> str:
    """Return the text on one line, without characters that a terminal would obey or reorder."""
    return "".join(char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


def _order(problem: Problem) -> tuple[int, str, int, int, str]:
    place = problem.place
    return (place.option, place.name, place.line, place.column, problem.message)


def _block(problem: Problem) -> str:
    place = problem.place
    lines = [f"{printable(place.name)}:{place.line}:{place.column}: {printable(problem.message)}"]
    if place.text.strip():
        lines += _quoted(place)
    if problem.hint:
        lines.append(f"  hint: {printable(problem.hint)}")
    return "\n".join(lines)


def _quoted(place: Place) -> list[str]:
    """Return the source line and carets under the piece.  A long line is cut around the piece."""
    start = place.column - 1
    first = max(0, start - _WIDEST // 2) if len(place.text) > _WIDEST else 0
    shown = printable(place.text[first : first + _WIDEST])
    before = shown[: start - first]
    marked = shown[start - first : start - first + place.length]
    gutter = f"{place.line} | "
    pad = "".join(char if char == "\t" else " " * _width(char) for char in before)
    carets = "^" * max(1, sum(_width(char) for char in marked))
    return [gutter + shown, f"{' ' * (len(gutter) - 2)}| {pad}{carets}"]


def _width(char: str) -> int:
    """Return the columns of a character on a terminal: two for CJK, none for a combining mark."""
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
