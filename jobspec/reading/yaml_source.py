"""Read YAML text into plain values, with the place of every key and value.

Scalars are typed by the core schema of YAML 1.2 (yaml.org/spec/1.2.2, section 10.3.2): `no` and `12:30:00`
are text, `1e-3` is a number.  Whatever could make a spec mean something other than it shows is a mistake: duplicate
keys, anchors, aliases, tags, a second document.
"""

import errno
import os
import pathlib
import re
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import yaml
from yaml.reader import ReaderError

from jobspec.problems import Finding, Path, Place, Problem, SpecError
from jobspec.reading.notation import Line, hidden, is_secret, line_of, lines_with_secrets, names_of_secrets
from jobspec.spec.fields import ENV_NAME
from jobspec.spec.variables import names_secret

MAX_BYTES = 1 << 20  # a job spec is a page; this stops /dev/zero and a data set given by mistake
STDIN = "<stdin>"  # what messages call it
MAX_DEPTH = 20  # the deepest key of the spec is at 5; much deeper nesting would exhaust Python's stack

_NAME = re.compile(ENV_NAME)
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # what PyYAML counts as a line break
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS = {
    **dict.fromkeys(["", "~", "null", "Null", "NULL"], None),
    **dict.fromkeys(["true", "True", "TRUE"], True),
    **dict.fromkeys(["false", "False", "FALSE"], False),
    **dict.fromkeys([".nan", ".NaN", ".NAN"], float("nan")),
    **{sign + word: float(sign + "inf") for sign in ("", "+", "-") for word in (".inf", ".Inf", ".INF")},
}


@dataclass(frozen=True)
class Source:
    """The values of a spec; `keys` and `items` hold the place of each key and of each value by path.

    `suffix` is appended to the job's name once the spec is known to be correct.
    `earlier` are names of secrets in a list that another file or option may have replaced.
    """

    values: dict[str, Any]
    keys: dict[Path, Place]
    items: dict[Path, Place]
    suffix: str = ""
    earlier: frozenset[str] = frozenset()

    def locate(self, finding: Finding) -> Problem:
        """Return the problem at the finding's key or value, or at the nearest parent that is in the file."""
        path = finding.path
        places = [self.keys, self.items] if finding.on_key else [self.items, self.keys]
        while path and not any(path in found for found in places):
            path, places = path[:-1], [self.keys, self.items]
        place = next(found[path] for found in places if path in found)
        problem = Problem(place, finding.message, finding.hint)
        return hidden(problem) if line_of(place) in self._hidden_lines else problem

    @property
    def secrets(self) -> frozenset[str]:
        return names_of_secrets(self.values) | self.earlier

    @cached_property
    def _hidden_lines(self) -> frozenset[Line]:
        return lines_with_secrets(self.secrets, self.keys, self.items)


def read(name: str) -> str:
    """Return the text of a spec file, or of STDIN.  Text in UTF-8 of at most MAX_BYTES is expected."""
    try:
        if name == STDIN:
            if sys.stdin is None:  # closed by the caller
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with pathlib.Path(name).open("rb") as stream:
                data = stream.read(MAX_BYTES + 1)
    except OSError as error:  # that of a read names no file
        raise OSError(error.errno, error.strerror, name) from None
    if len(data) > MAX_BYTES:
        raise SpecError([Problem(_start(name), f"larger than {MAX_BYTES >> 20} MiB, too large for a job spec")])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = Place(name, data[: error.start].count(b"\n") + 1, 1, 1, "")
        message = f"not UTF-8 text: byte 0x{data[error.start]:02x}"
        raise SpecError([Problem(place, message, "save the file as UTF-8")]) from None


def parse(text: str, name: str, may_be_empty: bool = False) -> Source:
    """Return the mapping in a YAML text; with `may_be_empty`, comments alone are an empty mapping."""
    reader = Reader(text, name)
    root = reader.document()
    start = reader.items.get((), _start(name, text))
    if may_be_empty and () not in reader.items:
        root = {}
    if not isinstance(root, dict):
        reader.add(start, "a job spec must be a mapping of keys to values", "begin with `name: my-job`")
        raise SpecError(reader.problems)
    return Source(root, reader.keys, {**reader.items, (): start})


def _start(name: str, text: str = "") -> Place:
    return Place(name, 1, 1, 1, _LINE_BREAK.split(text, maxsplit=1)[0])


class Reader:
    """Builds values from PyYAML's parser events, with the place of each; option: of what follows KEY= in `--set`."""

    def __init__(self, text: str, name: str, option: Place | None = None) -> None:
        self.problems: list[Problem] = []
        self.keys: dict[Path, Place] = {}
        self.items: dict[Path, Place] = {}
        self._text, self._name, self._option = text, name, option
        self._lines = _LINE_BREAK.split(text)
        self._path: Path = ()  # of the key that is being read

    def add(self, place: Place, message: str, hint: str = "") -> None:
        problem = Problem(place, message, hint)
        of_secret = is_secret(self._path, self._names) or self._names & {*_NAME.findall(place.text)}
        self.problems.append(hidden(problem) if of_secret else problem)

    @cached_property
    def _names(self) -> set[str]:
        """Names that the text has for secrets, found without its structure: it may be no YAML."""
        text = self._text if self._option is None else self._option.text
        named = {name for name in _NAME.findall(text) if name.isupper() and names_secret(name)}
        listed = " ".join(re.findall(r"""secrets["']?\s*:(.*(?:\n[ \t#-].*)*)""", text))
        return named | {*_NAME.findall(listed)} - {"secret", "key"}

    def document(self) -> Any:
        """Return the one document of the text, None if it is empty; raise SpecError with all mistakes."""
        root = None
        try:
            self._loader = cast(Any, yaml.SafeLoader(self._text))  # types-PyYAML leaves its methods without types
            self._loader.get_event()  # start of the stream
            if isinstance(self._loader.get_event(), yaml.DocumentStartEvent):
                root = self._node(())
                self._loader.get_event()  # end of the document
                event = self._loader.get_event()
                if not isinstance(event, yaml.StreamEndEvent):
                    self.add(self._place(event), "a second document begins here; a job spec is one document")
        except ReaderError as error:
            lines = _LINE_BREAK.split(self._text[: error.position])
            place = self._at(len(lines) - 1, len(lines[-1]), 1)
            self.add(place, f"character U+{error.character:04X} is not allowed in YAML")
        except yaml.MarkedYAMLError as error:
            # Where PyYAML stopped, or where it began something that has no end.
            begun = error.problem in ("could not find expected ':'", "found unexpected end of stream")
            mark: Any = error.context_mark if begun else error.problem_mark
            context = f" ({error.context})" if error.context else ""
            self.add(self._at(mark.line, mark.column, 1), f"not YAML: {error.problem}{context}")
        except (ValueError, OverflowError):  # chr() of an escape like "\U99999999"
            mark = self._loader.get_mark()
            self.add(self._at(mark.line, mark.column, 1), "not YAML: this escape names no character")
        if self.problems:
            raise SpecError(self.problems)
        return root

    def _node(self, path: Path) -> Any:
        event = self._loader.get_event()
        place = self._place(event)
        self.items[path] = place
        if event.anchor is not None or getattr(event, "tag", None) is not None:
            message = "a job spec must not have anchors, aliases and tags"
            self.add(place, message, "write each value where it is needed, in quotes if it is text")
        if isinstance(event, yaml.AliasEvent):
            return None
        if len(path) > MAX_DEPTH:
            self.add(place, f"nested deeper than {MAX_DEPTH} levels; a job spec never needs that many")
            raise SpecError(self.problems)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(path)
        if isinstance(event, yaml.SequenceStartEvent):
            values: list[Any] = []
            while not self._loader.check_event(yaml.SequenceEndEvent):
                values.append(self._node((*path, len(values))))
            self._loader.get_event()
            return values
        text = self._text_of(event, place)
        return text if event.style else typed(text)

    def _mapping(self, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not self._loader.check_event(yaml.MappingEndEvent):
            event = self._loader.get_event()
            place = self._place(event)
            if not isinstance(event, yaml.ScalarEvent) or event.anchor is not None or event.tag is not None:
                self.add(place, "a key must be a plain word")
                raise SpecError(self.problems)
            key = self._text_of(event, place)
            below = (*path, key)
            self._path = below
            if key in values:
                self.add(place, f'"{key}" is given twice', f"it is first given on line {self.keys[below].line}")
            else:
                self.keys[below] = place
            values[key] = self._node(below)
        self._loader.get_event()
        return values

    def _text_of(self, event: Any, place: Place) -> str:
        """Return the text of a scalar; two escapes such as "\\ud83d\\ude00" are one character, as in JSON."""
        try:
            return str(event.value).encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self.add(place, "this escape is half of a surrogate pair: write the character itself")
            return ""

    def _place(self, event: Any) -> Place:
        start, end = event.start_mark, event.end_mark
        one_line = isinstance(event, yaml.ScalarEvent | yaml.AliasEvent) and start.line == end.line
        return self._at(start.line, start.column, end.column - start.column if one_line else 1)

    def _at(self, line: int, column: int, length: int) -> Place:
        """Return a place from PyYAML's line and column, which count from 0."""
        line = min(line, len(self._lines) - 1)
        if self._option is not None:  # its text is one line
            starts = [0, *(found.end() for found in _LINE_BREAK.finditer(self._text))]
            return replace(self._option, column=self._option.column + starts[line] + column, length=max(1, length))
        return Place(self._name, line + 1, column + 1, max(1, length), self._lines[line])


def typed(text: str) -> Any:
    """Return a plain scalar as YAML 1.2's core schema reads it."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) < 400:  # Python refuses to read integers of thousands of digits; no setting has them
        if _INT.fullmatch(text):
            return int(text, 0 if text[:2] in ("0o", "0x") else 10)
        if _FLOAT.fullmatch(text):
            return float(text)
    return text
