"""The words of a shell script, read with tree-sitter-bash: what each holds without its quotes, and where it stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tree_sitter import Language, Node, Parser
from tree_sitter_bash import language

_PARSER = Parser(Language(language()))
_MOST_UNREADABLE = 6
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_ESCAPED = {"word": re.compile(r"\\(.)", re.S), "string_content": re.compile(r'\\([$`"\\\n])')}
_DEFAULTS = (":-", "-", ":=", "=")
_AS_WRITTEN = ("number", "variable_name", "test_operator", "heredoc_body", "regex", "extglob_pattern")
_EXPANSIONS = ("simple_expansion", "expansion")


class Text(NamedTuple):
    """A text and where each of its characters stands in the file."""

    value: str
    at: Sequence[int]

    def cut(self, start: int, end: int) -> Text:
        return Text(self.value[start:end], self.at[start:end])


NOTHING = Text("", ())
LookUp = Callable[[str, Text], Sequence[Text]]  # from a variable's name, or "", and what was written to its words


def joined(parts: Sequence[Text]) -> Text:
    return Text("".join(part.value for part in parts), [place for part in parts for place in part.at])


class Source:
    """A parsed text.  A line that the parser cannot read, as it does not know all of bash, is passed over."""

    def __init__(self, text: Text) -> None:
        self.text = text
        # One byte each: then places are characters, and tree-sitter-bash 0.25 reads past a table at others (issue 337).
        lines = _NOT_ASCII.sub("x", text.value).encode().split(b"\n")
        for _ in range(_MOST_UNREADABLE):
            self.root = _PARSER.parse(b"\n".join(lines)).root_node
            nodes = below(self.root) if self.root.has_error else ()
            bad = [each for each in nodes if (each.type == "ERROR" and each.id != self.root.id) or each.is_missing]
            if not bad:
                break
            row = min(((each.is_missing and each.parent) or each).start_point.row for each in bad)
            lines[row] = b" " * len(lines[row])

    def is_comment(self, place: int) -> bool:
        """Return True if a character stands in a comment."""
        node = self.root.descendant_for_byte_range(place, place + 1)
        return node is not None and node.type == "comment"

    def of(self, node: Node) -> Text:
        return self.text.cut(node.start_byte, node.end_byte)


@dataclass
class Word:
    """One word as written; `assigned` is the variable's name if it is an assignment."""

    source: Source
    node: Node

    @cached_property
    def text(self) -> Text:
        return self.source.of(self.node)

    @cached_property
    def assigned(self) -> str | None:
        name = self.node.child_by_field_name("name") if self.node.type == "variable_assignment" else None
        return self.source.of(name).value.partition("[")[0] if name else None

    @cached_property
    def value(self) -> str:
        """The text without its quotes, or the assigned value; expansions as written."""
        if self.node.type == "word" and "\\" not in self.text.value:  # as most are
            return self.text.value
        node = self.node.child_by_field_name("value") if self.assigned else self.node
        return "".join(part.value for part, _ in pieces(self.source, node, lambda _, text: [text])) if node else ""

    @cached_property
    def expansions(self) -> list[tuple[str, Text]]:
        """Each `$name` or `${name…}`: the name, and the whole as written."""
        found = []
        for node in below(self.node, *_EXPANSIONS) if "$" in self.text.value else ():
            names = [each for each in node.named_children if each.type.endswith(("variable_name", "subscript"))]
            found += [(self.source.of(each).value.partition("[")[0], self.source.of(node)) for each in names[:1]]
        return found


def below(node: Node, *types: str) -> Iterator[Node]:
    """Yield the nodes of some types, or all, at or below a node; those inside a command substitution not again."""
    stack = [node]
    while stack:
        each = stack.pop()
        if each.type in types or not types:
            yield each
            if "command_substitution" in types:
                continue
        stack += reversed(each.children)


def pieces(source: Source, node: Node, look_up: LookUp, quoted: bool = False) -> Iterator[tuple[Text, bool]]:
    """Yield the parts of a word without its quotes, and whether a part is split at blanks."""
    written = source.of(node)
    if node.type in _ESCAPED:
        yield _unescaped(written, _ESCAPED["string_content" if quoted else "word"]), False
    elif node.type in ("raw_string", "ansi_c_string"):
        yield written.cut(1 if node.type == "raw_string" else 2, len(written.value) - 1), False
    elif node.type in ("string", "concatenation", "command_name", "translated_string"):
        end = node.start_byte + (1 if node.type == "string" else 0)
        for child in node.children:
            if node.type == "string" and child.start_byte > end:  # blanks at the edge belong to no node
                yield source.text.cut(end, child.start_byte), False
            if child.type not in ('"', "$"):
                yield from pieces(source, child, look_up, quoted or node.type == "string")
            end = child.end_byte
    elif not node.is_named or node.type in _AS_WRITTEN:
        yield written, False
    else:
        blanks = len(written.value) - len(written.value.lstrip())  # between two expansions: part of the second node
        if blanks:
            yield written.cut(0, blanks), False
            written = written.cut(blanks, len(written.value))
        first = next(iter(node.named_children), None) if node.type in _EXPANSIONS else None
        name, _, index = source.of(first).value.partition("[") if first else ("", "", "")
        plain = node.type == "simple_expansion" or (len(node.children) == 3 and index[:1] in ("", "@", "*", "0"))
        plain = plain or any(child.type in _DEFAULTS for child in node.children)
        found = look_up(name if plain else "", written)
        if index.startswith(("@", "*")) and len(found) > 1:
            for part in found:
                yield from [(Text(" ", [0]), True), (part, False)]
        else:
            yield found[0] if found else NOTHING, not quoted


def _unescaped(text: Text, escape: re.Pattern[str]) -> Text:
    found = escape.finditer(text.value)
    gone = {at for match in found for at in range(match.start(), match.start(1) + (match[1] == "\n"))}
    return joined([text.cut(at, at + 1) for at in range(len(text.value)) if at not in gone]) if gone else text


def fields(pieces: Iterator[tuple[Text, bool]]) -> list[Text]:
    """Return the words that a shell makes of the parts of one word."""
    fields: list[list[Text]] = [[]]
    for part, splits in pieces:
        for match in re.finditer(r"\s+|\S+" if splits else r"(?s:.+)|^$", part.value):
            if splits and match[0].isspace():
                fields.append([])
            else:
                fields[-1].append(part.cut(*match.span()))
    return [joined(parts) for parts in fields if parts]
