"""Read `#SBATCH` lines as sbatch reads them.

Source: `_opt_batch_script` in Slurm's src/sbatch/opt.c.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jobspec.problems import Place
from jobspec.spec.sbatch_options import OPTIONS, PYXIS, WITH_VALUE
from lint.lexer import Lexer

_SHORT = """
    a=array A=account b=begin B=extra-node-info c=cpus-per-task C=constraint d=dependency D=chdir e=error F=nodefile
    G=gpus h=help H=hold i=input J=job-name k=no-kill L=licenses m=distribution M=clusters n=ntasks N=nodes o=output
    O=overcommit p=partition q=qos Q=quiet s=oversubscribe S=core-spec t=time v=verbose V=version w=nodelist W=wait
    x=exclude
"""
_LONG = dict(pair.split("=") for pair in _SHORT.split())

_LINE = re.compile(r"^#SBATCH(?=[ \t])(.*)$", re.M)
_WORD = re.compile(r"""(?:[^\s"'\\]|\\.|"[^"]*"|'[^']*')+""")
_QUOTES = re.compile(r"""["'\\]""")


@dataclass(frozen=True)
class Directive:
    """One option of an `#SBATCH` line by its long name.

    known: True if sbatch has such an option; `name` is then its full name, even if the script shortens it.
    ignored: True if a command stands above it, because sbatch stops reading there.
    in_other_script: True if it belongs to a script in a here-document.
    """

    name: str
    value: str
    place: Place
    known: bool
    ignored: bool
    in_other_script: bool


def directives(text: str, locate: Callable[[int, int], Place], lexer: Lexer) -> Iterator[Directive]:
    """Yield the options of all `#SBATCH` lines, in order, including those of scripts in here-documents."""
    first = next((command.words[0].start for command in lexer.commands if command.words), len(text))
    for line in _LINE.finditer(text):
        in_other_script = any(line.start() in part for part in lexer.here_documents)
        ignored = line.start() > first and not in_other_script
        words = list(_WORD.finditer(text, line.start(1), line.end()))
        while words and not words[0][0].startswith("#"):
            word = words.pop(0)
            name, value = _split(_QUOTES.sub("", word[0]))
            if not name:
                continue
            end = word.end()
            if not value and name in WITH_VALUE and words:
                end, value = words[0].end(), _QUOTES.sub("", words.pop(0)[0])
            known = name in OPTIONS or name.startswith(PYXIS)
            place = locate(word.start(), end - word.start())
            yield Directive(name, value, place, known, ignored, in_other_script)


def _split(word: str) -> tuple[str, str]:
    """Return the long name and the value in a word like `--name=value` or `-Xvalue`; no name for other words."""
    if word.startswith("--"):
        name, _, value = word[2:].partition("=")
        meant = [option for option in OPTIONS if name and option.startswith(name)]
        return (meant[0] if name not in OPTIONS and len(meant) == 1 else name), value
    if word.startswith("-") and word[1:2] in _LONG:
        return _LONG[word[1]], word[2:]
    return "", ""
