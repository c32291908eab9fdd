"""What bash and ShellCheck themselves say of a script."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator

from lint.rules import ERROR, WARNING, Fault, Finding, rule
from lint.shell import Script

_MOST_SECONDS = 2
_SAID = re.compile(r"line (\d+): (.*)")
_OTHER_SHELL = re.compile(r"#!.*\b(?:zsh|ksh|fish|csh|tcsh)\b")
# Left out: arrays joined or split, often on purpose, and what sbatch-refuses-it says.
_SHELLCHECK = ("-S", "error", "-f", "json", "-e", "SC2068,SC2145,SC2199,SC2198,SC1128", "-")


@rule
def bash_refuses_it(script: Script) -> Iterator[Fault]:
    known = not script.in_container and not _OTHER_SHELL.match(script.text) and "\0" not in script.text
    found = _SAID.search(_run(["bash", "-n"], script.text)) if known else None
    if found and "here-document" not in found[2]:
        lines = script.text.split("\n")
        line = min(int(found[1]), len(lines))
        start = sum(len(each) + 1 for each in lines[: line - 1])
        yield Fault(script.locate(start, max(1, len(lines[line - 1]))), f"bash does not understand this: {found[2]}")


def shellcheck(script: Script) -> Iterator[Finding]:
    """Yield ShellCheck's errors under its own names, where it is installed."""
    if shutil.which("shellcheck") is None or "\0" in script.text or _OTHER_SHELL.match(script.text):
        return
    dialect = "sh" if re.match(r"#!\s*\S*/(?:env )?(?:da)?sh\b", script.text) else "bash"
    lines = script.text.split("\n")
    for each in json.loads(_run(["shellcheck", "-s", dialect, *_SHELLCHECK], script.text) or "[]"):
        start = sum(len(line) + 1 for line in lines[: each["line"] - 1]) + each["column"] - 1
        place = script.locate(min(start, len(script.text)), max(1, each["endColumn"] - each["column"]))
        name = f"SC{each['code']}"
        severity, link = ERROR if name.startswith("SC1") else WARNING, f"https://www.shellcheck.net/wiki/{name}"
        yield Finding(place, f"{each['message']} [{name}]", "", link, name, severity)


def _run(words: list[str], text: str) -> str:
    """Return what a checker says; nothing if it is not there or takes too long."""
    data = text.encode("utf-8", "replace")
    try:
        done = subprocess.run(words, input=data, capture_output=True, timeout=_MOST_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout or done.stderr).decode(errors="replace")
