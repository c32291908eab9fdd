"""A script's statements, the program that it starts, and that program's words."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import dropwhile
from typing import NamedTuple

from tree_sitter import Node

from lint.launches import Launch, launches, launches_of
from lint.shell import Command, Script, commands
from lint.words import Source, Text, below

_NAMES_THAT_SHOW = """
    echo printf date hostname nvidia-smi rocm-smi pwd sleep wait exit true : squeue env printenv which cat ls sinfo
    uname lscpu free df id whoami scontrol sacct tee [ test
"""
SHOWS = frozenset(_NAMES_THAT_SHOW.split())  # their only effect is what they print
_NO_PROGRAMS = SHOWS | {"srun", "export", "source", "head", "pkill", "trl", "curl", "pip", "mkdir", "kill", "ssh"}
AGENTS = ("torchrun", "accelerate", "composer", "deepspeed")
UNKNOWN = re.compile("([\U000f0000-\U000fffff])")  # what lint writes for a variable that only a run knows


class Statement(NamedTuple):
    """A part of a script up to a line's end, `;` or `&&`, without comments.  ends: its first and last place."""

    kind: str
    ends: tuple[int, int]
    where: str
    text: str
    commands: Sequence[Command]
    names: set[str]
    assigned: set[str]

    def one_line(self) -> str | None:
        """Return the statement as one line of bash; None if that is not the same, as with a here-document."""
        joined = ""
        for line in re.sub(r"\\\n\s*", " ", self.text).replace("\t", " ").split("\n"):
            opens = not joined or re.search(r"(?:\b(?:then|do|else|in)|[{(;|&])$", joined)
            joined += f"{' ' if opens else '; '}{line.strip()}" if line.strip() else ""
        both = [self.commands, [*commands(Source(Text(joined.strip(), range(len(joined)))))]]
        before, after = ([[word.value.split() for word in each.words] for each in found] for found in both)
        return joined.strip() if before and before == after and joined.isprintable() else None


def place(script: Script, at: Sequence[int]) -> str:
    """Return the lines of some characters of a script."""
    low, high = (script.locate(each, 1).line for each in (at[0], at[-1])) if at else (1, 1)
    return f"line {low}" if low == high else f"lines {min(low, high)}-{max(low, high)}"


def statements(script: Script, known: Sequence[Command]) -> list[Statement]:
    """Return the statements of the text that some commands stand in, those that lint could not read included."""
    known = [each for each in known if each.words]
    if not known:
        return []
    source, starts = known[0].words[0].source, [each.start for each in known]
    chars = list(source.text.value)
    for node in below(source.root, "comment"):
        chars[node.start_byte : node.end_byte] = " " * (node.end_byte - node.start_byte)
    spans, stack = [], [source.root]
    while stack:
        node = stack.pop()
        if node.type == "program" or (node.type == "list" and not _is_whole(node)):
            stack += reversed(node.children)
        elif node.is_named and node.type != "comment":
            spans.append((node.start_byte, node.end_byte, node.type))
    found, done, text = [], 0, "".join(chars)
    for start, end, kind in [*spans, (len(text), len(text), "")]:
        for first, last, which in ((done, start, "unreadable"), (start, end, kind)):
            own = text[first:last].strip() if which != "unreadable" else text[first:last].strip(" \t\n;&\\")
            first = text.find(own, first)
            at = source.text.at[first : first + len(own)]
            if own:
                inside = known[bisect_left(starts, at[0]) : bisect_right(starts, at[-1])] if which == kind else []
                assigned = {word.assigned for each in inside for word in each.words if word.assigned}
                ends, names = (at[0], at[-1]), {each.name for each in inside}
                where, shown = place(script, at), script.shown(own)
                found.append(Statement(which, ends, where, shown, inside, names, assigned))
        done = end
    return found


def main_launch(script: Script) -> Launch | None:
    """Return what trains: of several, the last one with a launcher, else of Python; None if there is no program."""
    for name in list(script.assigned):  # `$OUT` stays where OUT=run_$(date); a variable with several words is replaced
        held = None if any(_may_be_skipped(word.node) for word in script.assigned[name]) else script.holds(name)
        if held is None or (len(held) == 1 and UNKNOWN.search(held[0].value) and len(held[0].value.split()) < 2):
            del script.assigned[name]
            script.environment.pop(name, None)
            script.held.clear()
    found = list(launches(script))
    for at, launch in enumerate(found):  # the guard of our own artifacts: python3 -c … torchrun
        after = next((n for n, word in enumerate(launch.words) if word.value == "torchrun"), None)
        if launch.kind == "python -c" and after is not None:
            found[at] = next(launches_of(script, launch.words[after:], launch.command, launch.step, launch.inner))

    def rank(launch: Launch) -> int:
        if launch.kind in AGENTS:
            return 5
        if launch.kind in ("python", "mpirun", "mpiexec"):
            return 4 if launch.step else 3
        if launch.kind in _NO_PROGRAMS:
            return int(script.in_container and not script.shell)
        return 2 if launch.step else int(script.in_container or launch.kind.endswith(".sh"))

    best = max(map(rank, found), default=0)
    return [launch for launch in found if rank(launch) == best][-1] if best else None


def _is_whole(node: Node) -> bool:
    """Return True for commands with `||` between them or `&&` behind a test, which are one statement."""
    first = node
    while first.type == "list":
        first = first.children[0]
    is_test = first.type == "test_command" or (first.text or b"").startswith(b"test ")
    return node.type == "list" and (is_test or any(each.type == "||" for each in node.children))


def _may_be_skipped(node: Node) -> bool:
    above = node.parent
    if above is None:
        return False
    is_behind_a_test = _is_whole(above) and above.children[0] != node
    return is_behind_a_test or above.type in ("if_statement", "case_statement") or _may_be_skipped(above)


def in_front(script: Script, launch: Launch) -> list[str]:
    """Return what stands between srun, or the begin of the command, and the program, such as timeout or apptainer."""
    if step := launch.step:
        words = list(dropwhile(lambda word: word is not step.program, step.words))
    else:
        given = [word for word in launch.command.words if word.assigned is None and word.node.type != "heredoc_body"]
        words = [text for word in given for text in script.fields(word)]
    begin = launch.text.at[0] if launch.text.at else 0
    end = next((at for at, word in enumerate(words) if begin in word.at), len(words))
    return [script.shown(word.value) for word in words[:end] if not re.fullmatch(r"(?:ba|da)?sh|-\w*c", word.value)]


def before_srun(script: Script, step: Launch) -> list[str]:
    """Return the words in front of srun that may change what it does, such as timeout."""
    texts = [text for word in step.command.words if word.assigned is None for text in script.fields(word)]
    end = next((at for at, text in enumerate(texts) if [*text.at] == [*step.text.at]), 0)
    words = [script.shown(text.value) for text in texts[:end]]
    return [word for word in words if word not in ("exec", "time", "command", "!")]


def own_words(launch: Launch) -> tuple[Sequence[Text], Sequence[Text]]:
    """Return the words of the launcher or of Python, and those from the program on, its script or module."""
    words, values = launch.words, [option.text for option in launch.options.values()]
    begins = [at for at, word in enumerate(words) if word is launch.program]
    if not begins and launch.open:  # a variable holds the program
        begins = [at for at, word in enumerate(words) if UNKNOWN.fullmatch(word.value) and word not in values]
    if not begins or launch.kind not in ("python", *AGENTS):
        return [], [launch.text, *words]
    return words[: min(begins)], words[min(begins) :]
