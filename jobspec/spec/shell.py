"""Lines of bash in a spec (`setup`, `slurm.prologue`, `slurm.epilogue`), how an artifact runs them, and command lines.

Each line is a separate command.  bash reads it with `eval`, so that no line can change the script around it.  If a line
fails, the shell prints it and exits.
"""

import re
import shlex
import shutil
from collections.abc import Sequence
from functools import cache
from posixpath import basename

VARIABLES = ("JOB_LINE", "JOB_LINES", "JOB_WORDS")  # variables of the shell that runs the lines
_PYTHON = r"python[0-9.]*"
_LAUNCHERS = "torchrun|accelerate|deepspeed|mpirun|mpiexec|srun|uv|poetry|pixi|conda|pdm"
_SHELLS = "(?:ba|da|z|k)?sh"

KEPT_BY_A_BATCH_SCRIPT = "SLURM_(CONF|JWT|JOB|ARRAY_|SUBMIT_|CLUSTER_NAME|NODE_ALIASES|TMPDIR)"
"""A pattern for how those of Slurm's variables begin that are of the job itself."""
_OF_SLURM = re.compile(r"\$\{?(SLURM_\w+)")
_PROBLEM = re.compile(r"line [0-9]+: (.*)")


@cache  # all combinations of a sweep have the same lines
def syntax_error(line: str) -> str | None:
    """Return why bash cannot read a line as a whole command; None if it can, or if there is no bash."""
    import subprocess  # only here: most specs have no such lines

    bash = shutil.which("bash")
    if bash is None:
        return None
    done = subprocess.run(
        [bash, "--norc", "-O", "extglob", "-n", "-c", line], capture_output=True, text=True, env={"LC_ALL": "C"}
    )
    problems = _PROBLEM.findall(done.stderr)
    return problems[0] if problems else None


def run_lines(lines: Sequence[str], key: str) -> str:
    """Write the lines of a key as a loop of a bash script; the shell exits where one fails.

    They read no input: it may be the rest of the script itself, as in `render-job … | bash`.
    """
    words = " \\\n  ".join(map(shlex.quote, lines))
    # A loop over a single text looks to shellcheck like a command whose $(…) was forgotten.
    directive = "# shellcheck disable=SC2041\n" if len(lines) == 1 else ""
    return f"""\
set +u  # the lines may source files that read unset variables
{directive}for JOB_LINE in \\
  {words}; do
  {_RUN.format(key=key)}
done </dev/null"""


def before(words: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Return the words of a container's command that runs lines of `setup` first, with no value in the shell text."""
    if not lines:
        return list(words)
    first = len(lines) + 1
    text = (
        f'trap \'exit 143\' TERM; JOB_LINES=("${{@:1:{len(lines)}}}") JOB_WORDS=("${{@:{first}}}"); set --; '
        f'for JOB_LINE in "${{JOB_LINES[@]}}"; do {_RUN.format(key="setup")}; done; exec "${{JOB_WORDS[@]}}"'
    )
    return ["bash", "-c", text, "setup", *lines, *words]


_RUN = 'eval "$JOB_LINE" || {{ echo "{key}: this line failed: $JOB_LINE" >&2; exit 1; }}'


def read_by_the_shell(line: str) -> str:
    """Return a line without its comment and the texts in single quotes, in which a shell replaces nothing."""
    return re.sub(r"'[^']*'|(?:^|(?<=\s))#.*", "", line)


def unset_in_a_batch_script(line: str) -> list[str]:
    """Return Slurm's variables that a line reads, and that a batch script unsets: they may be of an enclosing job."""
    names = sorted({*_OF_SLURM.findall(read_by_the_shell(line))})
    return [name for name in names if not (re.match(KEPT_BY_A_BATCH_SCRIPT, name) or f"{name}=" in line)]


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
