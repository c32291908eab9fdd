"""Read `#SBATCH` lines as sbatch reads them, and what a job and its steps ask for.

Source: `_opt_batch_script` in Slurm's src/sbatch/opt.c, and the manuals of sbatch and srun, 22.05 to 25.05.
"""

import re
from collections import ChainMap
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import NamedTuple

from jobspec.problems import Place
from jobspec.spec.sbatch_options import OPTIONS, PYXIS, WITH_VALUE
from lint.words import Source, Text

_SHORT = """
    a=array A=account b=begin B=extra-node-info c=cpus-per-task C=constraint d=dependency D=chdir e=error F=nodefile
    G=gpus h=help H=hold i=input J=job-name k=no-kill L=licenses m=distribution M=clusters n=ntasks N=nodes o=output
    O=overcommit p=partition q=qos Q=quiet s=oversubscribe S=core-spec t=time v=verbose V=version w=nodelist W=wait
    x=exclude E=preserve-env I=immediate K=kill-on-bad-exit l=label r=relative u=unbuffered X=disable-status
    Z=no-allocate
"""
LONG = dict(pair.split("=") for pair in _SHORT.split())  # the long names of one-letter options, of sbatch and of srun
_FLAGS = OPTIONS - WITH_VALUE
_LINE = re.compile(r"#SBATCH(?=[ \t])|(#[ \t]+SBATCH|#(?i:sbatch))(?=[ \t]+-)")  # group 1: misspelt
_WORD = re.compile(r"""(?:[^\s"'\\]|\\.|"[^"]*"|'[^']*')+""")
_REPLACED = re.compile("[\U000f0000-\U0010ffff]|" r"\$(?:\{[^}]*\}|\w+|@)")  # as a whole, by a variable or command
_QUOTES = re.compile(r"""["'\\]""")


class Option(NamedTuple):
    """An option's value, empty if it has none, and its place."""

    value: str
    text: Text


class Directive(NamedTuple):
    """One option of an `#SBATCH` line by its long name.

    known: True if sbatch has such an option; `name` is then its full name, even if the script shortens it.
    ignored: why sbatch does not read it: "below" the first command, or "misspelt"; empty if it does.
    """

    name: str
    value: str
    place: Place
    known: bool
    ignored: str


def directives(source: Source, locate: Callable[[int, int], Place]) -> Iterator[Directive]:
    """Yield the options of all `#SBATCH` lines, in order, and of misspelt ones above the first command."""
    text, ignored, begin = source.text.value, "", 0
    for line in text.split("\n"):
        found = _LINE.match(line)
        if found and (not ignored or (source.is_comment(begin) and not found[1])):  # a here-document is no comment
            written = _WORD.finditer(text, begin + found.end(), begin + len(line))
            words = [Text(_QUOTES.sub("", each[0]), range(*each.span())) for each in written]
            why = "misspelt" if found[1] else ignored
            for name, (value, at) in read_options(words, _FLAGS, LONG)[0].items():
                meant = [option for option in OPTIONS if option.startswith(name)]
                name = meant[0] if len(meant) == 1 else name
                known = name in OPTIONS or name.startswith(PYXIS)
                name = "ntasks-per-node" if name == "tasks-per-node" else name
                yield Directive(name, value, locate(at.at[0], len(at.at)), known, why)
        elif line.strip() and not line.lstrip().startswith("#"):
            ignored = "below"
        begin += len(line) + 1


def read_options(
    words: Sequence[Text], flags: Container[str], short: Mapping[str, str]
) -> tuple[dict[str, Option], Sequence[Text], bool]:
    """Read the options in front of a program: by long name, with dashes.

    Return them, the words from the program on, and True if a variable may hold more options.
    flags: those without a value, or with one only behind `=`.  short: the long names of one-letter options, if any.
    """
    found, unknown, at = dict[str, Option](), False, 0
    while at < len(words) and (_REPLACED.fullmatch(words[at].value) or words[at].value.startswith("-")):
        option, at = words[at], at + 1
        if _REPLACED.fullmatch(option.value):
            unknown = True
            continue
        name, given, value = option.value.lstrip("-").partition("=")
        if short and not option.value.startswith("--"):
            letters = option.value[1:]
            while short.get(letters[:1]) in flags and letters[1:2].isalpha():  # -lK1 is -l -K1
                found[short[letters[0]]] = Option("", option)
                letters = letters[1:]
            name, given, value = short.get(letters[:1], letters[:1]), letters[1:], letters[1:]
        name = name.replace("_", "-")
        if not given and name not in flags and at < len(words) and not words[at].value.startswith("--"):
            option, at = words[at], at + 1
            value = option.value
        found[name] = Option(value, option)
    return found, words[at:], unknown


def number(text: str) -> int | None:
    """Return a whole number as written in a file; None for a variable, another text or more than 9 digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


class Request(ChainMap[str, str]):
    """What a job, or a step of it, asks for: options by long name, those of the step first.  None: not said."""

    def count(self, name: str) -> int | None:
        return number(self.get(name, ""))

    @property
    def nodes(self) -> int | None:
        """The least number of nodes."""
        return number(self.get("nodes", "").partition("-")[0]) or None

    @property
    def tasks_per_node(self) -> int | None:
        """How many tasks srun starts on each node; --ntasks wins, and --ntasks-per-node is then the most."""
        nodes, most = self.nodes or 1, self.count("ntasks-per-node")
        if most and "ntasks-per-node" in self.maps[0] and "ntasks" not in self.maps[0]:
            return most
        if (tasks := self.get("ntasks")) is not None:
            total = number(tasks)
            return min(-(-total // nodes) or 1, most or total) if total else None
        return most if most or self.get("ntasks-per-node") else 1

    @property
    def gpus_per_node(self) -> int | None:
        """How many GPUs each node gives to the job or step."""
        gres = [each for each in self.get("gres", "").split(",") if each.startswith("gpu:")]
        per_node = self.get("gpus-per-node") or "".join(gres[:1])
        if per_node:
            return number(per_node.rpartition(":")[2])
        for name, times, over in (("gpus-per-task", self.tasks_per_node, 1), ("gpus", 1, self.nodes or 1)):
            count = number(self.get(name, "").rpartition(":")[2])
            if count:
                return count * (times or 1) // over if count % over == 0 else None
        return None
