"""A shell script as rules see it: its commands, its `#SBATCH` options, and the places of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from jobspec.lint.lexer import Command, Lexer, Word
from jobspec.lint.sbatch import Directive, directives
from jobspec.problems import Place


@dataclass(frozen=True)
class Flag:
    """An option of a command with its value (empty if it has none) and the place of both."""

    value: str
    place: Place
    command: Command


@dataclass
class Script:
    """The commands of a script, in the order of their beginnings, and its `#SBATCH` options.

    `locate(start, length)` is the place of a piece of the text.
    """

    text: str
    locate: Callable[[int, int], Place]
    commands: list[Command] = field(default_factory=list)
    directives: list[Directive] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str, locate: Callable[[int, int], Place]) -> Script:
        lexer = Lexer(text)
        return cls(text, locate, lexer.commands, list(directives(text, locate, lexer)))

    @property
    def is_batch(self) -> bool:
        """Whether sbatch reads it: then it runs once, on the first node of the allocation."""
        return bool(self.directives)

    def directive(self, name: str) -> Directive | None:
        """The `#SBATCH` option of a long name; sbatch takes the last of several."""
        return next((found for found in reversed(self.directives) if found.name == name), None)

    def place(self, word: Word, text: str = "") -> Place:
        """Where a word is, or a piece of it."""
        offset = max(0, word.text.find(text))
        return self.locate(word.start + offset, len(text or word.text))

    def flags(self, *names: str) -> Iterator[Flag]:
        """Every use of an option, as `--name value` or `--name=value`; `_` and `-` are the same in long names."""
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
        """Each `NAME=value`, with or without export."""
        for command in self.commands:
            for word in command.words:
                if word.assigned is not None:
                    yield word.assigned, word
