"""A script's statements, and the program that it starts.  What lint's readers give is used in this file alone."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from lint.launches import CONTAINERS, Launch, _of_words, launches
from lint.sbatch import number
from lint.secrets import is_secret
from lint.shell import Command, Script, Source, Text, Word, commands

__all__ = ["Launch", "Program", "Script", "Statement", "Text", "Word", "is_secret", "number"]

_NAMES_THAT_SHOW = """
    echo printf date hostname nvidia-smi rocm-smi pwd sleep wait exit true : squeue env printenv which cat ls sinfo
    uname lscpu free df id whoami scontrol sacct tee [ test
"""
SHOWS = frozenset(_NAMES_THAT_SHOW.split())
"""Commands whose only effect is what they print."""

_INNER = re.compile("([\U000f0000-\U000fffff]|" r"\$\{[^}]*\}|\$\w+|\$\([^)]*\)|`[^`]*`|\$[@*#?!])")
_UNKNOWN = re.compile("([\U000f0000-\U000fffff])")
_KUBELET = re.compile(r"\$\((\w+)\)")
_ARGUMENT = re.compile(r"\$(?:[1-9@*#]|\{[0-9@*#]+[^}]*\})")


@dataclass
class Statement:
    """Whole lines of a script, numbered from 1, that belong together."""

    first: int
    last: int
    text: str
    commands: list[Command] = field(default_factory=list)

    @property
    def where(self) -> str:
        return f"line {self.first}" if self.first == self.last else f"lines {self.first}-{self.last}"

    @property
    def names(self) -> set[str]:
        return {command.name for command in self.commands}

    def one_line(self) -> str | None:
        """Return the statement as one line of bash; None if that is not the same, as with a here-document."""
        lines: list[str] = []
        for line in re.sub(r"\\\n\s*", " ", self.text).replace("\t", " ").split("\n"):
            lines += [line.strip()] if line.strip() else []
        joined = ""
        for line in lines:
            opens = re.search(r"(?:\b(?:then|do|else|in)|[{(;|&])$", joined)
            joined += f"{' ' if opens else '; '}{line}" if joined else line
        source = Source(Text(joined, range(len(joined))))
        same = [[word.value.strip() for word in one.words] for one in commands(source)] == [
            [re.sub(r"\\\n\s*|\t", " ", word.value).strip() for word in one.words] for one in self.commands
        ]
        return joined if same and not source.root.has_error and joined.isprintable() else None


class Program:
    """What a script or container starts: `main` is the launch that trains, None if there is no program at all."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.is_plain = script.in_container and not script.shell
        self.names = set(script.assigned)
        self._keep_variables_that_only_a_run_knows()
        self.main = self._main()
        self.asked: list[str] = []
        self.used: set[str] = set()
        self.secrets: dict[str, str] = {}
        self.place = ""

    def without_comments(self, words: Sequence[Text]) -> list[Text]:
        """Leave out comments between the elements of an array, which lint gives as words."""
        return [
            word for word in words if not (self.script.shown(word.value).startswith("#") and self._begins_comment(word))
        ]

    def _begins_comment(self, word: Text) -> bool:
        at = word.at[0] if len(word.at) else 0
        return self.script.text[at : at + 1] == "#" and self.script.text[at - 1 : at].isspace()

    def inlined(self, word: Word) -> bool:
        """Return True if the value of an assignment is part of what starts the program."""
        own = [*(self.main.words if self.main else []), *self.outer]
        inside = range(word.text.at[0], word.text.at[-1] + 1) if len(word.text.at) else range(0)
        return any(at in inside for each in own for at in each.at[:1])

    def raw(self, commands: Sequence[Command], number: int) -> str | None:
        """Return the text of one command in a list of `&&` and `;`; None where it is not one of such a list."""
        each, follows = commands[number], commands[number + 1] if number + 1 < len(commands) else None
        if each.after not in ("", "&&", ";") or (follows and follows.after not in ("", "&&", ";")) or each.background:
            return None
        text = self.script.shown(" ".join(word.text.value for word in each.words))
        return re.sub(r"\\\n\s*", " ", text) if text.replace("\\\n", " ").replace("\t", " ").isprintable() else None

    def line(self, at: int) -> int:
        return self.script.locate(at, 1).line

    def where(self, first: Sequence[int], last: Sequence[int] = ()) -> str:
        lines = [self.line(at) for part in (first, last) for at in {*part[:1], *part[-1:]}]
        low, high = min(lines, default=1), max(lines, default=1)
        return f"line {low}" if low == high else f"lines {low}-{high}"

    def held(self, name: str) -> list[Text] | None:
        """Return the words that a variable holds; None if only a run knows."""
        return self.script._held(name, ())

    def _keep_variables_that_only_a_run_knows(self) -> None:
        """A word with `OUT=run_$(date)` stays `$OUT`, so that it has one value; one with several words is replaced."""
        script = self.script
        for name in list(script.assigned):
            held = self.held(name)
            one = len(held) == 1 and _UNKNOWN.search(held[0].value) if held is not None else True
            if one and (held is None or not re.search(r"\s", held[0].value.strip())):
                del script.assigned[name]
                script.held.clear()

    def _main(self) -> Launch | None:
        found = [launch for launch in launches(self.script) if launch.kind not in ("srun", "export", "source")]
        for at, launch in enumerate(found):  # the guard of our own artifacts: python3 -c … torchrun
            after = next((n for n, word in enumerate(launch.words) if word.value == "torchrun"), None)
            if launch.kind == "python -c" and after is not None:
                words = launch.words[after:]
                found[at] = next(_of_words(self.script, words, launch.command, launch.step, launch.inner))

        def rank(launch: Launch) -> int:
            if launch.is_agent or launch.kind == "deepspeed":
                return 5
            if launch.kind == "python" or launch.kind in ("mpirun", "mpiexec"):
                return 4 if launch.step else 3
            if launch.kind in SHOWS or launch.kind in ("head", "pkill", "trl", "curl", "pip", "mkdir", "kill", "ssh"):
                return 1 if self.is_plain else 0
            return 2 if launch.step else 1 if self.script.in_container or launch.kind.endswith(".sh") else 0

        best = max(map(rank, found), default=0)
        return [launch for launch in found if rank(launch) == best][-1] if best else None

    @cached_property
    def outer(self) -> list[Text]:
        """The words of the whole command with the program, srun and a container in front of it included."""
        if self.main is None:
            return []
        start = (self.main.step.command if self.main.step else self.main.command).start
        command = [each for each in self.script.commands if each.start <= start][-1]
        words = [word for word in command.words if word.assigned is None and word.node.type != "heredoc_body"]
        return [text for word in words for text in self.script.fields(word)]

    def container(self) -> tuple[str, list[str]]:
        """Return the name of what stands between srun and the program, and its words; empty if there is nothing."""
        values = [word.value for word in self.outer]
        at = next((at for at, value in enumerate(values) if value.rpartition("/")[2] in CONTAINERS), None)
        return ("", []) if at is None else (values[at].rpartition("/")[2], values[at + 1 :])

    def in_front(self, begin: int) -> str:
        """Return what stands between a word of the command and the program, such as timeout; not `bash -c`."""
        words = self.outer[begin:]
        end = next((at for at, word in enumerate(words) if self.main and word is self.main.text), len(words))
        shell = next((at - 1 for at, word in enumerate(words) if re.fullmatch("-[a-z]*c", word.value)), len(words))
        return self.script.shown(" ".join(word.value for word in words[: max(0, min(end, shell))])).removeprefix("exec")

    @cached_property
    def statements(self) -> list[Statement]:
        """Return all lines that are no comments, those that bash could not read included."""
        script = self.script
        lines = script.text.split("\n")
        source = Source(Text(script.text, range(len(script.text))))
        blank = list(script.text)
        stack, rows = [source.root], []
        while stack:
            node = stack.pop()
            if node.type == "comment":
                for at in source.of(node).at:
                    blank[at] = " "
            stack += node.children
        for node in source.root.children:
            if node.type not in ("comment", "\n", ";", "&"):
                last = node.end_point.row - (node.end_point.column == 0 and node.end_point.row > node.start_point.row)
                rows.append((node.start_point.row, last))
        covered = {row for first, last in rows for row in range(first, last + 1)}
        code = "".join(blank).split("\n")
        rows += [(n, n) for n, line in enumerate(code) if line.strip() and n not in covered and line.strip() != "\\"]
        merged: list[list[int]] = []
        for first, last in sorted(rows):
            if merged and first <= merged[-1][1]:
                merged[-1][1] = max(last, merged[-1][1])
            else:
                merged.append([first, last])
        begins = [0]
        for line in lines:
            begins.append(begins[-1] + len(line) + 1)
        found = []
        for first, last in merged:
            inside = [each for each in script.commands if begins[first] <= each.start < begins[last + 1]]
            text = "\n".join(code[first : last + 1]).rstrip()
            found.append(Statement(self.line(begins[first]), self.line(begins[last]), text, inside))
        return found

    @cached_property
    def main_statement(self) -> Statement | None:
        """The statement with the program."""
        launch = self.main
        if launch is None or self.is_plain:
            return None
        command = (launch.step or launch).command
        inner = launch.inner and not launch.step and len(launch.text.at) > 0
        at = self.line(launch.text.at[0] if inner else command.start)
        return next((one for one in self.statements if one.first <= at <= one.last), None)

    def arguments(self, words: Sequence[Text], inner: bool) -> tuple[list[str], str]:
        """Return words as they are, or if a shell must replace something in them, the text for that shell."""
        written = []
        for at, word in enumerate(words):
            option, equals, value = word.value.partition("=")
            before = words[at - 1].value if at else ""
            for name, held in ((option, value),) if equals else ((before, word.value),):
                plain = name.lstrip("-").replace("-", "_").upper()
                if name.startswith("-") and is_secret(plain, held):
                    self.secrets[plain] = held
                    word = Text(f"{option}={chr(0xF0000 + 0xFFFE)}" if equals else chr(0xF0000 + 0xFFFE), word.at)
                    self.script.names[chr(0xF0000 + 0xFFFE)] = f"${{{plain}}}"
            written.append(self._word(word, inner))
        if all(isinstance(each, str) for each in written):
            return [each for each in written if isinstance(each, str)], ""
        return [], " ".join(shlex.quote(each) if isinstance(each, str) else each[0] for each in written)

    def _word(self, word: Text, inner: bool) -> str | tuple[str]:
        value, names = word.value, self.script.names
        pieces = _UNKNOWN.split(value)
        pieces = _UNKNOWN.split(value.strip()) if len(pieces) > 1 else pieces
        if self.is_plain:  # the kubelet replaces $(NAME), and $$ by $
            pieces = [f"${{{part}}}" if at % 2 else part for at, part in enumerate(_KUBELET.split(value))]
        elif inner:
            pieces = _INNER.split(value)
        if len(pieces) == 1:
            return value
        text = ""
        for at, piece in enumerate(pieces):
            written = names.get(piece, piece).strip()
            if at % 2 and (_ARGUMENT.match(written) or written in self._loops()):
                self.asked.append(written)
                text += "change-me"
            elif at % 2:
                self.used.update(re.findall(r"\$\{?(\w+)", written))
                bare = len(pieces) == 3 and not pieces[0] + pieces[2] and self._is_bare(word, written)
                text += written if bare else f'"{written}"'
            else:
                text += shlex.quote(piece) if piece else ""
        return (text,) if '"' in text or "$" in text else text

    def asked_in(self, line: str) -> bool:
        return _ARGUMENT.search(line) is not None

    def _is_bare(self, word: Text, written: str) -> bool:
        at = word.at[0] if len(word.at) else 0
        return self.script.text[at - 1 : at].isspace() and self.script.text.startswith(written, at)

    def _loops(self) -> set[str]:
        names = re.findall(r"\bfor\s+(\w+)\s+in\b", self.script.text)
        return {written for name in names for written in (f"${name}", f"${{{name}}}")}


def begins(launch: Launch) -> int | None:
    """Return where the program begins in the words of a launcher or Python: a script, a module or its variable."""
    found = next((at for at, word in enumerate(launch.words) if word is launch.program), None)
    dashes = next((at for at, word in enumerate(launch.words) if word.value == "--"), None)
    if dashes is not None and launch.kind == "torchrun" and (found is None or dashes < found):
        return dashes + 1
    if found is not None or not launch.open:
        return found
    values = [option.text for option in launch.options.values()]
    for at, word in enumerate(launch.words):
        if _UNKNOWN.fullmatch(word.value.strip()) and not any(word is value for value in values):
            return at
    return None


def own_words(launch: Launch) -> Iterator[Text]:
    """Yield the words from the program on: its script or module, and what follows."""
    begin = begins(launch)
    if launch.kind in ("python", "torchrun", "accelerate", "deepspeed", "composer") and begin is not None:
        yield from launch.words[begin:]
    else:
        yield launch.text
        yield from launch.words
