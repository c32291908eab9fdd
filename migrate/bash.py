"""A script's statements, the program that it starts, and that program's words."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from lint.launches import Launch, launches, launches_of
from lint.shell import Command, Script, commands
from lint.words import Source, Text

_NAMES_THAT_SHOW = """
    echo printf date hostname nvidia-smi rocm-smi pwd sleep wait exit true : squeue env printenv which cat ls sinfo
    uname lscpu free df id whoami scontrol sacct tee [ test
"""
SHOWS = frozenset(_NAMES_THAT_SHOW.split())
"""Commands whose only effect is what they print."""
_NO_PROGRAMS = SHOWS | {"head", "pkill", "trl", "curl", "pip", "mkdir", "kill", "ssh"}
UNKNOWN = re.compile("([\U000f0000-\U000fffff])")
"""What lint writes for a variable that only a run knows."""


@dataclass
class Statement:
    """Whole lines of a script that belong together, without comments; `start` and `end` are places of characters."""

    start: int
    end: int
    where: str
    text: str
    commands: Sequence[Command]

    @property
    def names(self) -> set[str]:
        return {command.name for command in self.commands}

    def one_line(self) -> str | None:
        """Return the statement as one line of bash; None if that is not the same, as with a here-document."""
        joined = ""
        for line in re.sub(r"\\\n\s*", " ", self.text).replace("\t", " ").split("\n"):
            opens = not joined or re.search(r"(?:\b(?:then|do|else|in)|[{(;|&])$", joined)
            joined += f"{' ' if opens else '; '}{line.strip()}" if line.strip() else ""
        joined = joined.strip()
        again = commands(Source(Text(joined, range(len(joined)))))
        return joined if _shape(again) == _shape(self.commands) and joined.isprintable() else None


def _shape(found: Iterable[Command]) -> list[list[str]]:
    return [[re.sub(r"\\\n|\s", "", word.value) for word in command.words] for command in found]


def where(script: Script, first: int, last: int) -> str:
    low, high = script.locate(first, 1).line, script.locate(last, 1).line
    return f"line {low}" if low == high else f"lines {min(low, high)}-{max(low, high)}"


def statements(script: Script) -> list[Statement]:
    """Return all lines that are no comments, those that lint could not read included."""
    chars = list(script.text)
    for at in script.comments:
        while at < len(chars) and chars[at] != "\n":
            chars[at], at = " ", at + 1
    lines = "".join(chars).split("\n")
    begins = list(accumulate((len(line) + 1 for line in lines), initial=0))
    rows = [(n, n) for n, line in enumerate(lines) if line.strip() not in ("", "\\")]
    if script.commands:
        nodes = [
            node for node in script.commands[0].words[0].source.root.children if node.type not in ("\n", "comment")
        ]
        rows += [(node.start_point.row, node.end_point.row - (node.end_point.column == 0)) for node in nodes]
    merged: list[list[int]] = []
    for first, last in sorted(rows):
        if merged and first <= merged[-1][1]:
            merged[-1][1] = max(last, merged[-1][1])
        else:
            merged.append([first, last])
    places, found = [each.start for each in script.commands], []
    for first, last in merged:
        start, end = begins[first], begins[last + 1]
        inside = script.commands[bisect_left(places, start) : bisect_left(places, end)]
        text = "\n".join(lines[first : last + 1]).rstrip()
        if text:
            found.append(Statement(start, end, where(script, start, begins[last]), text, inside))
    return found


def keep_what_only_a_run_knows(script: Script) -> None:
    """Let `$OUT` stay where OUT=run_$(date), so that it has one value; a variable with several words is replaced."""
    for name in list(script.assigned):
        held = script.holds(name)
        if held is None or (len(held) == 1 and UNKNOWN.search(held[0].value) and len(held[0].value.split()) < 2):
            del script.assigned[name]
            script.held.clear()


def main_launch(script: Script) -> Launch | None:
    """Return what trains: of several, the last one with a launcher, else of Python; None if there is no program."""
    found = [launch for launch in launches(script) if launch.kind not in ("srun", "export", "source")]
    for at, launch in enumerate(found):  # the guard of our own artifacts: python3 -c … torchrun
        after = next((n for n, word in enumerate(launch.words) if word.value == "torchrun"), None)
        if launch.kind == "python -c" and after is not None:
            found[at] = next(launches_of(script, launch.words[after:], launch.command, launch.step, launch.inner))

    def rank(launch: Launch) -> int:
        if launch.is_agent or launch.kind == "deepspeed":
            return 5
        if launch.kind in ("python", "mpirun", "mpiexec"):
            return 4 if launch.step else 3
        if launch.kind in _NO_PROGRAMS:
            return int(is_plain(script))
        return 2 if launch.step else int(script.in_container or launch.kind.endswith(".sh"))

    best = max(map(rank, found), default=0)
    return [launch for launch in found if rank(launch) == best][-1] if best else None


def is_plain(script: Script) -> bool:
    """Return True for a container's words, which no shell reads."""
    return script.in_container and not script.shell


def in_front(script: Script, launch: Launch) -> str:
    """Return what stands between srun, or the begin of the command, and the program, such as timeout or apptainer."""
    if step := launch.step:
        begin = next((at for at, word in enumerate(step.words) if word is step.program), len(step.words))
        words = list(step.words[begin:])
    else:
        given = [word for word in launch.command.words if word.assigned is None and word.node.type != "heredoc_body"]
        words = [text for word in given for text in script.fields(word)]
    ends = (at for at, word in enumerate(words) if word.at[:1] == launch.text.at[:1])
    shells = (at - 1 for at, word in enumerate(words) if re.fullmatch("-[a-z]*c", word.value))
    end = min(next(ends, len(words)), next(shells, len(words)))
    return script.shown(" ".join(word.value for word in words[: max(0, end)])).removeprefix("exec")


def own_words(script: Script, launch: Launch) -> tuple[Sequence[Text], Sequence[Text]]:
    """Return the words of the launcher or of Python, and those from the program on, its script or module."""
    if launch.kind not in ("python", "torchrun", "accelerate", "deepspeed", "composer"):
        return [], [launch.text, *launch.words]
    words, values = launch.words, [option.text for option in launch.options.values()]
    begins = [at for at, word in enumerate(words) if word is launch.program]
    begins += [at + 1 for at, word in enumerate(words) if word.value == "--" and launch.kind == "torchrun"]
    if not begins and launch.open:  # a variable holds the program
        unknown = (at for at, word in enumerate(words) if UNKNOWN.fullmatch(word.value) and word not in values)
        begins = [next(unknown, len(words))]
    begin = min(begins, default=len(words))
    if not begins:
        return words, [launch.text, *words]
    return words[:begin], [word for word in words[begin:] if not _is_comment(script, word)]


def _is_comment(script: Script, word: Text) -> bool:
    """Return True for a comment between the elements of an array, which lint gives as a word."""
    return bool(word.at[:1]) and word.at[0] in script.comments
