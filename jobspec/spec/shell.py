"""Lines of bash in a spec (`setup`, `slurm.prologue`, `slurm.epilogue`), and how an artifact runs them.

Each line is a separate command.  bash reads it with `eval`, so that no line can change the script around it.  If a line
fails, the shell prints it and exits.
"""

import re
import shlex
import shutil
from collections.abc import Sequence
from functools import cache

VARIABLES = ("JOB_LINE", "JOB_LINES", "JOB_WORDS")  # variables of the shell that runs the lines

KEPT_BY_A_BATCH_SCRIPT = "SLURM_(CONF|JWT|JOB|ARRAY_|SUBMIT_|CLUSTER_NAME|NODE_ALIASES|TMPDIR)"
"""A pattern for how those of Slurm's variables begin that are of the job itself."""
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
