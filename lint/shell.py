"""Read a shell script with tree-sitter-bash: its commands and words, and what variables hold.  Nothing is run.

What only a run knows, such as `$1`, `$(hostname)` or a variable that the script does not set, becomes one private
character in a value; `Script.names` maps it to what was written.  So a rule sees what a task's own shell still replaces
(`$NAME`) apart from what the batch shell has replaced by then (that character).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tree_sitter import Node

from jobspec.problems import Place
from lint.sbatch import Request, directives
from lint.words import LookUp, Source, Text, Word, below, fields, joined, pieces

_UNKNOWN = 0xF0000  # the first private character
_MOST_UNKNOWN = 0xFFFD
_LONGEST = 10_000
_OPERATORS = ("|", "|&", "||", "&&", "&", ";")
_COMMANDS = ("command", "declaration_command", "unset_command", "test_command", "variable_assignment")
_SUBSTITUTIONS = ("command_substitution", "process_substitution")
Setting = tuple[str, str, Place | Text, Place | Text]  # a variable's name and value; where name or key, and all, stand


@dataclass(frozen=True)
class Versions:
    """What the cluster has; the newest unless given."""

    slurm: tuple[int, int] = (25, 5)
    torch: tuple[int, int] = (2, 13)


@dataclass
class Command:
    """One simple command, assignment or test.

    after: the operator in front of it.  background: `&` follows.  function: the function that it stands in.
    """

    words: list[Word]
    start: int
    after: str = ""
    background: bool = False
    function: str = ""

    @property
    def name(self) -> str:
        """The first word that is no assignment, without its folder."""
        return next((word.value for word in self.words if word.assigned is None), "").rpartition("/")[2]

    @property
    def end(self) -> int:
        """The place of its last character."""
        return max([self.start, *(place for word in self.words for place in word.text.at[-1:])])


class Script:
    """The commands of a script, in the order in which they begin, and its `#SBATCH` options; without these, no sbatch.

    locate: returns the place of a piece of the text, from its start and length.  asked: what the job asks for, by
    sbatch's long option names.  inside_texts: commands in texts that other shells run, once launches are known.
    unit: what runs it: a node, a pod or a service of compose.  shell: the one that reads it in a container.
    environment: variables from around it.  settings: every value that a variable gets, there and in the script.
    names: what was written to its private character, and back.
    """

    def __init__(self, text: str, locate: Callable[[int, int], Place]) -> None:
        self.text, self.locate = text, locate
        self.source = Source(Text(text, range(len(text))))
        self.commands, self.inside_texts = list(commands(self.source)), list[Command]()
        self.directives = list(directives(self.source, locate))
        self.asked = Request({found.name: found.value for found in self.directives if not found.ignored})
        self.unit, self.shell, self.versions = "node", "", Versions()
        self.environment, self.names = dict[str, Text](), dict[str, str]()
        self.held = dict[str, list[Text] | None]()
        self.settings: list[Setting] = [
            (name, word.value, word.text.cut(0, len(name)), word.text)
            for name, words in self.assigned.items()
            for word in words
        ]

    @property
    def in_container(self) -> bool:
        return self.unit != "node"

    def place(self, piece: Place | Text) -> Place:
        if isinstance(piece, Place):
            return piece
        return self.locate(piece.at[0] if len(piece.at) else 0, max(1, len(piece.at)))

    @cached_property
    def assigned(self) -> dict[str, list[Word]]:
        """Every value that the script gives to a variable, as `NAME=value` or `${NAME:=value}`."""
        found: dict[str, list[Word]] = {}
        for word in (word for command in self.commands for word in command.words):
            if word.assigned:
                found.setdefault(word.assigned, []).append(word)
            for node in below(word.node, "expansion") if "${" in word.text.value else ():
                if len(node.children) > 3 and node.children[2].type in (":=", "="):
                    found.setdefault(word.source.of(node.children[1]).value, []).append(Word(word.source, node))
        return found

    @cached_property
    def exported(self) -> set[str]:
        """The names that the script hands on to the programs it starts."""
        found: set[str] = set()
        for command in self.commands:
            said = " ".join(word.value for word in command.words if word.assigned is None)
            if re.match(r"export\b|(?:declare|typeset) -\w*x", said):
                found.update(word.assigned or word.value for word in command.words[1:])
            elif re.match(r"set .*(?:-a|allexport)\b", said):
                found.update(self.assigned)
        return found

    def unknown(self, written: str) -> str:
        """Return the character that stands for what only a run knows."""
        if written not in self.names:
            char = chr(_UNKNOWN + min(len(self.names) // 2, _MOST_UNKNOWN))
            self.names |= {written: char, char: written}
        return self.names[written]

    def shown(self, value: str) -> str:
        """Return a value as it was written, for messages."""
        return "".join(self.names.get(char, char) for char in value)

    def fields(self, word: Word, task: bool = False) -> list[Text]:
        """Return the words that the shell makes of a word; a task's shell knows only exported variables."""
        if word.node.type == "word" and "\\" not in word.text.value:  # as most are
            return [word.text]
        return fields(pieces(word.source, word.node, self._look_up(task)))

    def _look_up(self, task: bool = False, seen: tuple[str, ...] = ()) -> LookUp:
        def words(name: str, text: Text) -> Sequence[Text]:
            known = not task or name in self.exported or name in self.environment
            unknown = text if task else Text(self.unknown(text.value), text.at[:1])
            found = self.holds(name, seen) if known else None
            return [unknown] if found is None else found

        return words

    def holds(self, name: str, seen: tuple[str, ...] = ()) -> list[Text] | None:
        """Return what a variable holds, as words for an array; None if only a run knows, or if it has two values."""
        words = self.assigned.get(name, [])
        if not words:
            return [self.environment[name]] if name in self.environment else None
        if name in self.held or name in seen or len(seen) > 20:
            return self.held.get(name)
        values: list[list[Text]] = []
        for word in words:
            is_default = word.node.type == "expansion"
            value = word.node.children[-2] if is_default else word.node.child_by_field_name("value")
            is_array = value is None or value.type == "array"
            own: list[Text] = []
            for node in value.named_children if value and is_array else [value] if value else []:
                parts = pieces(word.source, node, self._look_up(False, (*seen, name)))
                own += fields(parts) if is_array else [joined([part for part, _ in parts])]
            if values and any(child.type == "+=" for child in word.node.children):
                own = [*values.pop(), *own] if is_array else [joined([*values.pop(), *own])]
            values.append(own)
        same = len({tuple(part.value for part in value) for value in values}) == 1
        short = sum(len(part.value) for part in values[-1]) <= _LONGEST  # variables that double each other
        self.held[name] = values[-1] if same and short else None
        return self.held[name]


def commands(source: Source) -> Iterator[Command]:
    """Yield every command of a text, in the order in which they begin, with those in substitutions and functions."""
    stack: list[tuple[Node, str, bool, str]] = [(source.root, "", False, "")]
    while stack:
        node, after, background, function = stack.pop()
        children = node.children
        if node.type == "function_definition" and (name := node.child_by_field_name("name")):
            function = source.of(name).value
        elif node.type in _COMMANDS:
            kept = [child for child in children if not child.type.endswith("_redirect")]
            own = [node] if node.type == "variable_assignment" else kept
            words = [Word(source, each.children[0] if each.type == "command_name" else each) for each in own]
            written = source.of(node)
            yield Command(words, next(iter(written.at), 0), after, background, function)
            may_hold = any(char in written.value for char in "(`")  # most hold none, and a walk takes time
            children = [each for child in children for each in below(child, *_SUBSTITUTIONS)] if may_hold else []
        kinds = ["", *(child.type for child in children), ""]
        for at in reversed(range(len(children))):
            own_after = kinds[at] if kinds[at] in _OPERATORS else "" if at else after
            runs_on = kinds[at + 2] == "&" or (background and not kinds[at + 2])
            stack.append((children[at], own_after, runs_on, function))


def locator(text: str, file: str) -> Callable[[int, int], Place]:
    """Return the function that finds the place of a piece of a file."""
    lines = text.split("\n")
    begins = [match.end() for match in re.finditer("^|\n", text)]

    def locate(start: int, length: int) -> Place:
        number = bisect_right(begins, start) - 1
        column = start - begins[number]
        line = lines[number].rstrip("\r")
        return Place(file, number + 1, column + 1, max(1, min(length, len(line) - column)), line)

    return locate
