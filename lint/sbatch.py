"""Read `#SBATCH` lines as sbatch reads them, and what a job and its steps ask for.

Source: `_opt_batch_script` in Slurm's src/sbatch/opt.c, and the manuals of sbatch and srun, 22.05 to 25.05.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass

from jobspec.problems import Place
from jobspec.spec.sbatch_options import OPTIONS, PYXIS, WITH_VALUE

_SHORT = """
    a=array A=account b=begin B=extra-node-info c=cpus-per-task C=constraint d=dependency D=chdir e=error F=nodefile
    G=gpus h=help H=hold i=input J=job-name k=no-kill L=licenses m=distribution M=clusters n=ntasks N=nodes o=output
    O=overcommit p=partition q=qos Q=quiet s=oversubscribe S=core-spec t=time v=verbose V=version w=nodelist W=wait
    x=exclude
"""
_LONG = dict(pair.split("=") for pair in _SHORT.split())
_OTHER_NAMES = {"tasks-per-node": "ntasks-per-node"}
_NEARLY = re.compile(r"#[ \t]+SBATCH(?=[ \t]+-)|#(?!SBATCH)(?i:sbatch)(?=[ \t]+-)")
_WORD = re.compile(r"""(?:[^\s"'\\]|\\.|"[^"]*"|'[^']*')+""")
_QUOTES = re.compile(r"""["'\\]""")


@dataclass(frozen=True)
class Directive:
    """One option of an `#SBATCH` line by its long name.

    known: True if sbatch has such an option; `name` is then its full name, even if the script shortens it.
    ignored: why sbatch does not read it; empty if it does.
    """

    name: str
    value: str
    place: Place
    known: bool
    ignored: str


def directives(text: str, locate: Callable[[int, int], Place], comments: Container[int]) -> Iterator[Directive]:
    """Yield the options of all `#SBATCH` lines, in order, and of lines that look like one.

    comments: where comments begin; below the first command, a line in a text of the script is none.
    """
    ignored, begin = "", 0
    for line in text.split("\n"):
        nearly = _NEARLY.match(line)
        if nearly and not ignored:
            yield from _options(text, begin + nearly.end(), begin + len(line), locate, "spelling")
        elif line.startswith("#SBATCH") and line[7:8] in (" ", "\t") and (not ignored or begin in comments):
            yield from _options(text, begin + 7, begin + len(line), locate, ignored)
        elif line.strip() and not line.lstrip().startswith("#"):
            ignored = "command"
        begin += len(line) + 1


def _options(
    text: str, start: int, stop: int, locate: Callable[[int, int], Place], ignored: str
) -> Iterator[Directive]:
    words = list(_WORD.finditer(text, start, stop))
    while words and not words[0][0].startswith("#"):
        word = words.pop(0)
        written, end = _QUOTES.sub("", word[0]), word.end()
        name, _, value = written[2:].partition("=")
        if written[:2] != "--":  # -Xvalue
            name, value = _LONG.get(written[1:2], "") if written[:1] == "-" else "", written[2:]
        meant = [option for option in OPTIONS if name and option.startswith(name)]
        name = meant[0] if name not in OPTIONS and len(meant) == 1 else name
        if name and not value and name in WITH_VALUE and words:
            end, value = words[0].end(), _QUOTES.sub("", words.pop(0)[0])
        known = name in OPTIONS or name.startswith(PYXIS)
        if name:
            place = locate(word.start(), end - word.start())
            yield Directive(_OTHER_NAMES.get(name, name), value, place, known, ignored)


def number(text: str) -> int | None:
    """Return a whole number as written in a file; None for a variable, another text or more than 9 digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


class Request:
    """What a job, or a step of it, asks for: options by long name, those of the step first.  None: not said."""

    def __init__(self, job: Mapping[str, str], step: Mapping[str, str] | None = None) -> None:
        self.job, self.step = job, step or {}

    def get(self, name: str) -> str | None:
        return self.step.get(name, self.job.get(name))

    def count(self, name: str) -> int | None:
        return number(self.get(name) or "")

    @property
    def nodes(self) -> int | None:
        """The least number of nodes."""
        return number((self.get("nodes") or "").partition("-")[0]) or None

    @property
    def tasks_per_node(self) -> int | None:
        """How many tasks srun starts on each node; --ntasks wins, and --ntasks-per-node is then the most."""
        nodes, most = self.nodes or 1, self.count("ntasks-per-node")
        if most and "ntasks-per-node" in self.step and "ntasks" not in self.step:
            return most
        if (tasks := self.get("ntasks")) is not None:
            total = number(tasks)
            return min(-(-total // nodes) or 1, most or total) if total else None
        return most if most or self.get("ntasks-per-node") else 1

    @property
    def gpus_per_node(self) -> int | None:
        """How many GPUs each node gives to the job or step."""
        gres = [each for each in (self.get("gres") or "").split(",") if each.startswith("gpu:")]
        per_node = self.get("gpus-per-node") or "".join(gres[:1])
        if per_node:
            return number(per_node.rpartition(":")[2])
        for name, times, over in (("gpus-per-task", self.tasks_per_node, 1), ("gpus", 1, self.nodes or 1)):
            count = number((self.get(name) or "").rpartition(":")[2])
            if count:
                return count * (times or 1) // over if count % over == 0 else None
        return None
