"""What bash and ShellCheck themselves say of a script."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator

from jobspec.problems import Place, printable
from lint.rules import ERROR, WARNING, Fault, Finding
from lint.shell import Script

_OTHER_SHELL = re.compile(r"#!.*\b(?:zsh|ksh|fish|csh|tcsh)\b")
_PLAIN_SHELL = re.compile(r"#!\s*\S*/(?:env )?(?:da)?sh\b")
# Left out: arrays joined or split, often on purpose, and what sbatch-refuses-it says.
_SHELLCHECK = ("shellcheck", "-S", "error", "-f", "json1", "-e", "SC2068,SC2145,SC2199,SC2198,SC1128")


def bash_refuses_it(script: Script) -> Iterator[Fault]:
    found = re.search(r"line (\d+): (.*)", _said(script, "bash", "-n")[1]) if not script.in_container else None
    if found and "here-document" not in found[2]:
        place = _place(script, int(found[1]), 1, len(script.text))
        yield Fault(place, f"bash does not understand this: {found[2]}")


def shellcheck(script: Script) -> Iterator[Finding]:
    """Yield ShellCheck's errors under its own names, where it is installed."""
    dialect = "sh" if _PLAIN_SHELL.match(script.text) else "bash"
    said, _ = _said(script, *_SHELLCHECK, "-s", dialect, "-")
    for each in json.loads(said)["comments"] if said else ():
        place = _place(script, each["line"], each["column"], each["endColumn"] - each["column"])
        name = f"SC{each['code']}"
        severity, link = ERROR if name.startswith("SC1") else WARNING, f"https://www.shellcheck.net/wiki/{name}"
        yield Finding(place, f"{each['message']} [{name}]", "", link, severity, name)


def _place(script: Script, line: int, column: int, length: int) -> Place:
    start = sum(len(each) + 1 for each in script.text.split("\n")[: line - 1]) + column - 1
    return script.locate(min(start, len(script.text)), length)


def _said(script: Script, *words: str) -> tuple[str, str]:
    """Return a checker's stdout and stderr for a script of bash or sh; empty if it is not there or takes too long."""
    if _OTHER_SHELL.match(script.text):
        return "", ""
    try:
        done = subprocess.run(words, input=script.text.encode(), capture_output=True, timeout=2)
        return done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    except subprocess.TimeoutExpired:
        print(f"note: {words[0]} did not end in 2 s: {printable(script.locate(0, 1).name)}", file=sys.stderr)
    except OSError:
        pass
    return "", ""
