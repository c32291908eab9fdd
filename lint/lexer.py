"""Split a shell script into commands and words, as far as lint needs them.

Nothing is expanded.  The lexer knows quotes, comments, line continuations, here-documents, arithmetic and commands
inside commands (`$(…)`, backquotes, `bash -c '…'`), so a rule sees words and not text.
Grammar: POSIX.1-2017, Shell & Utilities, 2.2, 2.3, 2.6 and 2.10; arrays, `((…))` and `$'…'` from bash's manual.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field

TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
"""Programs and modules that start torchrun's agent."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTES = "'\""
_SPECIAL = "?$!#@*-0123456789"  # parameters of one character
_ESCAPED_LITERAL = re.compile(r"\$'[^'\\]*(?:\\.[^'\\]*)*'?", re.S)
# Two subshells that open together do not close together, so `((a) | b)` is none.  Brackets nest up to 5 deep.
_BALANCED = functools.reduce(lambda inside, _: rf"[^()]*(?:\({inside}\)[^()]*)*", range(5), "[^()]*")
_ARITHMETIC = re.compile(rf"\(\({_BALANCED}\)\)")
_HERE = re.compile(r"<<(-?)[ \t]*(\\?)(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\3")
_OPERATOR = re.compile(r"\|\||&&|;;|\|&|[|&;()\n]")
_REDIRECTION = re.compile(r"[0-9]*(?:<<<|<>|>>|<&|>&|>\||[<>](?!\())|&>>?")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^]]*\])?\+?=")
_BEFORE_A_PROGRAM = ("exec", "env", "nohup", "time", "!", "if", "then", "elif", "do", "while", "until", "else", "{")
_TIMEOUT_WITH_VALUE = ("-k", "--kill-after", "-s", "--signal")
_RUNS_TEXT = re.compile(r"(?:^|/)(?:ba|da|k|z)?sh$")
_HOLDS_COMMAND = re.compile(r"(?:^|\s)(?:srun|torchrun|\S*python3? -m torch\.distributed\.\w+)\s")


@dataclass(frozen=True)
class Expansion:
    """A `$name` or `${name…}` that the shell replaces; `text` is as written."""

    name: str
    text: str
    start: int


@dataclass
class Word:
    """One word: `value` without its quotes, `text` as written at `start` of the script."""

    start: int
    text: str = ""
    value: str = ""
    expansions: list[Expansion] = field(default_factory=list)

    @property
    def assigned(self) -> str | None:
        """The variable's name if the word is an assignment."""
        match = _ASSIGNMENT.match(self.text)
        return match[1] if match else None

    @property
    def assigned_value(self) -> str:
        """The value of an assignment; empty for an array."""
        return self.value.partition("=")[2]


@dataclass
class Command:
    """One simple command; `after` is the operator in front of it, such as `||` or `|`.

    `inner` is True if another shell runs it, not the script's, such as the shell of a task.
    `text` are the commands in the quoted text of `bash -c '…'`, if the command has one.
    """

    words: list[Word]
    after: str = ""
    inner: bool = False
    text: list[Command] = field(default_factory=list)

    @property
    def program(self) -> list[Word]:
        """The words from the program on, past assignments and words that start it, like exec or `timeout 23h`."""
        at = 0
        while at < len(self.words):
            word = self.words[at]
            if word.value == "timeout":
                at += 1
                while at < len(self.words) and self.words[at].value.startswith("-"):
                    at += 2 if self.words[at].value in _TIMEOUT_WITH_VALUE else 1
            elif word.assigned is None and word.value not in _BEFORE_A_PROGRAM:
                break
            at += 1
        return self.words[at:]

    @property
    def name(self) -> str:
        """The program's name without its folder; empty if there is none."""
        return next((word.value for word in self.program), "").rpartition("/")[2]

    def has(self, *programs: str) -> bool:
        """Return True if a program is the command or started by it, such as torchrun by srun."""
        return any(word.value.rpartition("/")[2] in programs for word in self.words)


class Lexer:
    """Splits a text from `at` to an `end` character into commands; a command inside a word follows the outer one.

    `here_documents` are the parts of the text that are here-documents.
    """

    def __init__(self, text: str, at: int = 0, end: str = "", inner: bool = False) -> None:
        self.text, self.at, self._end, self._inner = text, at, end, inner
        self.commands: list[Command] = []
        self.here_documents: list[range] = []
        self._nested: list[Command] = []
        self._depth = 0
        self._here: list[tuple[str, bool, bool]] = []
        self._read()

    def _read(self) -> None:
        command = self._new("")
        while self.at < len(self.text) and not self._is_end():
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self.text[self.at] in " \t\r":
                self.at += 1
            elif self.text[self.at] == "#":
                self.at = self._find("\n")
            elif here := _HERE.match(self.text, self.at):
                self._here.append((here[4], here[1] == "-", not here[2] and not here[3]))
                self.at = here.end()
            elif redirection := _REDIRECTION.match(self.text, self.at):
                self.at = redirection.end()
            elif _ARITHMETIC.match(self.text, self.at):
                self._word(command)
            elif operator := _OPERATOR.match(self.text, self.at):
                self.at = operator.end()
                self._depth += {"(": 1, ")": -1}.get(operator[0], 0)
                if operator[0] == "\n":
                    self._here_documents(command)
                command = self._new(operator[0])
            else:
                self._word(command)
        self._new("")
        self.commands.pop()

    def _is_end(self) -> bool:
        """Return True if the current text ends here.  A bracket may also close a subshell inside it."""
        return self.text[self.at] == self._end and self._depth <= 0

    def _new(self, operator: str) -> Command:
        """End the current command and begin the next."""
        if self.commands and not self.commands[-1].words:
            empty = self.commands.pop()
            operator = empty.after if operator == "\n" else operator
        self.commands += self._nested
        self._nested = []
        self.commands.append(Command([], operator, self._inner))
        return self.commands[-1]

    def _word(self, command: Command) -> None:
        word = Word(self.at)
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\r\n;&|<>)" or char == self._end:
                break
            if char == "(" and _ASSIGNMENT.fullmatch(self.text, word.start, self.at):
                self._array()
            elif arithmetic := _ARITHMETIC.match(self.text, self.at):
                self._arithmetic(word, arithmetic)
            else:
                self._piece(word, _QUOTES)
        if self.at == word.start:
            self.at += 1  # a bracket that closes nothing
        word.text = self.text[word.start : self.at]
        command.words.append(word)
        self._look_into(command, word)

    def _look_into(self, command: Command, word: Word) -> None:
        """Read the text in a word that another shell will run: `bash -c '…'`, or a script in a variable."""
        quoted = word.text.partition("=")[2] if word.assigned else word.text
        if len(quoted) < 2 or quoted[0] not in "'\"" or quoted[-1] != quoted[0]:
            return
        *before, option = [other.value for other in command.words[:-1]] or [""]
        runs = re.fullmatch(r"-[a-z]*c", option) and any(_RUNS_TEXT.search(value) for value in before)
        if runs or (word.assigned and ("\n" in quoted or _HOLDS_COMMAND.search(quoted[1:]))):
            start = word.start + len(word.text) - len(quoted) + 1
            inside = Lexer(self.text[: word.start + len(word.text) - 1], start, inner=True)
            self._nested += inside.commands
            command.text = inside.commands if runs else command.text

    def _piece(self, word: Word, quotes: str) -> None:
        """Read one character, escape, expansion or quoted text; only the characters in `quotes` quote here."""
        rest = self.text[self.at : self.at + 2]
        if rest[0] == "\\":
            word.value += rest[1:] if rest != "\\\n" else ""
            self.at += 2
        elif rest[0] == "'" and "'" in quotes:
            self._literal(word)
        elif rest == "$'" and "'" in quotes:
            self._escaped_literal(word)
        elif rest[0] == '"' and '"' in quotes:
            self._double(word)
        elif rest == "$(" and (arithmetic := _ARITHMETIC.match(self.text, self.at + 1)):
            self._arithmetic(word, arithmetic)
        elif rest == "$(":
            self._substitution(word, 2, ")")
        elif rest[0] == "`":
            self._substitution(word, 1, "`")
        elif rest[0] == "$":
            self._expansion(word, quotes)
        else:
            word.value += rest[0]
            self.at += 1

    def _literal(self, word: Word) -> None:
        end = self._find("'", self.at + 1)
        word.value += self.text[self.at + 1 : end]
        self.at = end + 1

    def _escaped_literal(self, word: Word) -> None:
        """Read `$'…'`, in which a backslash keeps a `'` from being the end."""
        match = _ESCAPED_LITERAL.match(self.text, self.at)
        if match:
            word.value += match[0][2:].removesuffix("'")
            self.at = match.end()

    def _double(self, word: Word) -> None:
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != '"':
            self._piece(word, "")
        self.at += 1

    def _expansion(self, word: Word, quotes: str) -> None:
        start = self.at
        braced = self.text.startswith("{", start + 1)
        name = _NAME.match(self.text, start + 1 + braced)
        inside = Word(start)  # its value is not the command's: only its expansions are
        if braced:
            self.at = name.end() if name else start + 2
            while self.at < len(self.text) and self.text[self.at] != "}":
                self._piece(inside, quotes or '"')  # "${name:-"it's"}" has quotes inside quotes
            self.at += 1
        elif name:
            self.at = name.end()
        else:
            self.at += 2 if self.text[start + 1 : start + 2] in _SPECIAL else 1
        text = self.text[start : self.at]
        word.value += text
        if name:
            word.expansions.append(Expansion(name[0], text, start))
        word.expansions += inside.expansions

    def _substitution(self, word: Word, opening: int, end: str) -> None:
        start = self.at
        inside = Lexer(self.text, start + opening, end, self._inner)
        self._nested += inside.commands
        self.here_documents += inside.here_documents
        word.expansions += [
            found for command in inside.commands for other in command.words for found in other.expansions
        ]
        self.at = inside.at + 1
        word.value += self.text[start : self.at]

    def _arithmetic(self, word: Word, found: re.Match[str]) -> None:
        """Read `((…))`, in which `<<` shifts bits and `;` ends no command."""
        start, inside = self.at, Word(self.at)
        self.at = found.start() + len("((")
        while self.at < found.end():
            self._piece(inside, "")
        word.value += self.text[start : self.at]
        word.expansions += inside.expansions

    def _array(self) -> None:
        """Read `name=( … )`: its elements often become a command's words."""
        inside = Lexer(self.text, self.at + 1, ")", self._inner)
        self._nested += inside.commands
        self.at = inside.at + 1

    def _here_documents(self, command: Command) -> None:
        """Read the lines of `<<END`; the shell expands them if END has no quotes."""
        for end, indented, expanded in self._here:
            strip = r"\t*" if indented else ""
            match = re.compile(rf"^{strip}{end}$", re.M).search(self.text, self.at)
            stop = match.start() if match else len(self.text)
            self.here_documents.append(range(self.at, stop))
            if expanded:
                word = Word(self.at, self.text[self.at : stop])
                while self.at < stop:
                    self._piece(word, "")
                command.words.append(word)
            self.at = match.end() if match else stop
        self._here.clear()

    def _find(self, text: str, start: int | None = None) -> int:
        found = self.text.find(text, self.at if start is None else start)
        return found if found >= 0 else len(self.text)
