"""The rendered examples in slurm/, k8s/ and docker/ are what jobs/ and templates/ give today, byte for byte.

No list says what they are: a rendered file names in its own header the target, the job and the `--set` options that
made it, and `JOB.TARGET.SUFFIX` is its name, so that a file whose header was damaged is still known as an example.
Files without the one and the other are hand-written and not looked at.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from jobspec import targets
from jobspec.artifact import render
from jobspec.difference import difference
from jobspec.problems import SpecError, printable

ROOT = Path(__file__).parent.parent
FOLDERS = ("slurm", "k8s", "docker")

_HEADER = re.compile(r"# Rendered by `render\.py (.*)`; edit the spec, not this file\.")
_HEADER_LINES = 3  # it is the first line, or stands below `#!`


def check(root: Path = ROOT, write: bool = False) -> str:
    """What is not as it should be, with the difference of each file; empty if all is well.

    With `write` the files that differ are written anew, and only what cannot be rendered is left to report.
    """
    return "".join(_check(file, root, write) for file in _examples(root))


def _examples(root: Path) -> Iterator[Path]:
    """All rendered files in the folders of examples."""
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            if file.is_file() and (_target_in_name(file) or _header(file)):
                yield file


def _check(file: Path, root: Path, write: bool) -> str:
    name = printable(file.relative_to(root).as_posix())
    command = _header(file)
    if command is None:
        return f"{name}: its first lines do not say what rendered it\n"
    try:
        target, job, settings = _parse(command)
        new = render(target, str(root / "jobs" / job), settings)
    except (ValueError, SpecError, OSError) as error:
        return f"{name}: cannot be rendered by `render.py {printable(command)}`\n{error}\n"
    old = file.read_bytes()
    if write and old != new.encode():
        file.write_bytes(new.encode())
    return "" if write else difference(old, new, name, f"render.py {printable(command)}")


def _header(file: Path) -> str | None:
    """The words after render.py in the command that rendered a file; None if the file names none."""
    with file.open(encoding="utf-8", errors="replace") as stream:
        found = (_HEADER.fullmatch(line.rstrip("\n")) for line in islice(stream, _HEADER_LINES))
        return next((match[1] for match in found if match), None)


def _target_in_name(file: Path) -> str | None:
    """slurm, of fashion-mnist.slurm.sh."""
    *_, target, suffix = ["", "", *file.name.split(".")]
    known = target in targets.names() and targets.template(target) == f"{target}.{suffix}.j2"
    return target if known else None


def _parse(command: str) -> tuple[str, str, list[str]]:
    """Target, file name of the job and `--set` options.  Raises ValueError if the command is something else."""
    target, job, *options = shlex.split(command)
    if target not in targets.names() or "/" in job or options[::2] != ["--set"] * (len(options) // 2):
        raise ValueError("this is no command that render.py writes into a header")
    return target, job, options[1::2]
