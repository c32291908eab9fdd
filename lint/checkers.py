"""What bash itself says of a script."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

from lint.rules import Fault
from lint.shell import Script

_OTHER_SHELL = re.compile(r"#!.*\b(?:zsh|ksh|fish|csh|tcsh)\b")


def bash_refuses_it(script: Script) -> Iterator[Fault]:
    if script.in_container or _OTHER_SHELL.match(script.text):
        return
    try:
        done = subprocess.run(("bash", "-n"), input=script.text.encode(), capture_output=True, timeout=2)
    except (OSError, subprocess.TimeoutExpired):
        return
    found = re.search(r"line (\d+): (.*)", done.stderr.decode(errors="replace"))
    if found and "here-document" not in found[2]:
        start = sum(len(line) + 1 for line in script.text.split("\n")[: int(found[1]) - 1])
        place = script.locate(min(start, len(script.text)), len(script.text))
        yield Fault(place, f"bash does not understand this: {found[2]}")
