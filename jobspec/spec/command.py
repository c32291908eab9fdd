"""Command lines as people type them in a shell: which words start Python, and where the script begins."""

import re
import shlex
from collections.abc import Sequence
from posixpath import basename

_PYTHON = r"python[0-9.]*"
_LAUNCHERS = "torchrun|accelerate|deepspeed|mpirun|mpiexec|srun|uv|poetry|pixi|conda|pdm"
_SHELLS = "(?:ba|da|z|k)?sh"


def starts_python(word: str) -> bool:
    """Return True if a word is Python or a launcher for it, in any folder."""
    return re.fullmatch(f"{_PYTHON}|{_LAUNCHERS}", basename(word)) is not None


def is_for_a_shell(word: str) -> bool:
    return re.fullmatch(rf"{_SHELLS}|.*\.(?:ba)?sh", basename(word)) is not None


def from_script(words: Sequence[str]) -> list[str]:
    """Return the words from the script or `-m` on, without what starts Python; all words if that is unclear."""
    if not words or not starts_python(words[0]):
        return list(words)
    for at, word in enumerate(words[1:], 1):
        if word == "-m" and words[at + 1 : at + 2] in (["torch.distributed.run"], ["torch.distributed.launch"]):
            continue  # torchrun by its longer name
        plain = at == 1 and not word.startswith("-") and re.fullmatch(_PYTHON, basename(words[0]))
        if plain or word == "-m" or word.endswith(".py"):
            return list(words[at:])
    return list(words)


def as_line(word: str) -> list[str]:
    """Split a word that is a whole command line; empty if it is the name of a script, perhaps with spaces."""
    try:
        words = shlex.split(word)
    except ValueError:  # a quote that is not closed
        return []
    if len(words) > 1 and (starts_python(words[0]) or is_for_a_shell(words[0]) or words[0].endswith(".py")):
        return words
    return []
