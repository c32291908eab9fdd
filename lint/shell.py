"""A shell script as rules see it: its commands, its `#SBATCH` options, and their places."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from jobspec.problems import Place
from lint.lexer import Command, Lexer, Word
from lint.sbatch import Directive, directives

# A function ends on its first line, or at a brace that is indented as its beginning is.
_FUNCTION = re.compile(
    r"""(?mx)
    ^([ \t]*) (?: function[ \t]+(\w+)[ \t]*(?:\([ \t]*\))? | (\w+)[ \t]*\([ \t]*\) )
    (?:\s|\#.*$)* (?P<body>\{) (?: .*[;&][ \t]*\}[ \t]*(?:\#.*)?$ | (?s:.*?) ^\1\} )
    """
)
_HANDED_OVER = re.compile(r"\b(?:export|declare|typeset) -f((?:[ \t]+\w+)+)")


@dataclass(frozen=True)
class Flag:
    """An option of a command with its value (empty if it has none) and the place of both."""

    value: str
    place: Place
    command: Command


@dataclass
class Script:
    """The commands of a script, in the order in which they begin, and its `#SBATCH` options.

    `locate(start, length)` is the place of a piece of the text.  With `one_network`, localhost is the same machine for
    all nodes.  `in_container`: it stands in a manifest or compose file, so Slurm does not start it.
    """

    text: str
    locate: Callable[[int, int], Place]
    commands: list[Command] = field(default_factory=list)
    directives: list[Directive] = field(default_factory=list)
    one_network: bool = False
    in_container: bool = False

    @classmethod
    def parse(cls, text: str, locate: Callable[[int, int], Place]) -> Script:
        lexer = Lexer(text)
        _mark_functions_of_other_shells(text, lexer.commands)
        return cls(text, locate, lexer.commands, list(directives(text, locate, lexer)))

    def after(self, assignments: Sequence[tuple[str, Place]]) -> Script:
        """Return a script that makes some assignments, which stand elsewhere, before its commands."""
        if not assignments:
            return self
        # Behind all text, where no other word is.
        end = 1 + max((word.start + len(word.text) for command in self.commands for word in command.words), default=0)
        starts = [end + sum(len(text) for text, _ in assignments[:number]) for number in range(len(assignments))]

        def locate(start: int, length: int) -> Place:
            number = bisect_right(starts, start) - 1
            return self.locate(start, length) if number < 0 else assignments[number][1]

        words = [Word(start, text, text) for start, (text, _) in zip(starts, assignments, strict=True)]
        return Script(self.text, locate, [Command(words), *self.commands], self.directives)

    @property
    def is_batch(self) -> bool:
        """True if sbatch reads it: it then runs once, on the first node of the allocation."""
        return bool(self.directives)

    def directive(self, name: str) -> Directive | None:
        """Return the `#SBATCH` option of a long name: the last one if there are several, as sbatch does."""
        return next((found for found in reversed(self.directives) if found.name == name), None)

    def place(self, word: Word, text: str = "") -> Place:
        """Return the place of a word or of a piece of it."""
        offset = max(0, word.text.find(text))
        return self.locate(word.start + offset, len(text or word.text))

    def flags(self, *names: str) -> Iterator[Flag]:
        """Yield every use of an option, as `--name value` or `--name=value`; `_` and `-` are equal in long names."""
        for command in self.commands:
            for number, word in enumerate(command.words):
                name, equals, value = word.value.partition("=")
                if (name.replace("_", "-") if name.startswith("--") else name) not in names:
                    continue
                following = command.words[number + 1 : number + 2]
                if equals or not following or following[0].value.startswith("-"):
                    yield Flag(value, self.place(word), command)
                else:
                    yield Flag(following[0].value, self.place(following[0]), command)

    def assignments(self) -> Iterator[tuple[str, Word]]:
        """Yield each `NAME=value`, with or without export."""
        for command in self.commands:
            for word in command.words:
                if word.assigned is not None:
                    yield word.assigned, word

    @cached_property
    def variables(self) -> dict[str, list[str]]:
        """The texts that the script assigns to each variable, as written."""
        found: dict[str, list[str]] = {}
        for name, word in self.assignments():
            found.setdefault(name, []).append(word.text.partition("=")[2])
        return found


def _mark_functions_of_other_shells(text: str, commands: list[Command]) -> None:
    """Set `inner` for the commands of each function that `export -f` or `declare -f` hands to another shell."""
    handed_over = {name for names in _HANDED_OVER.findall(text) for name in names.split()}
    for function in _FUNCTION.finditer(text):
        if {function[2], function[3]} & handed_over:
            for command in commands:
                if command.words and function.start("body") <= command.words[0].start < function.end():
                    command.inner = True
