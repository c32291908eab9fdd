"""Compare the rendered examples in slurm/, k8s/ and docker/ with what jobs/ and sites/ give today, byte for byte.

There is no list of examples.  The header of a rendered file names the target, the spec files, the `--set` options and
the combination of a sweep.  The file's name is `JOB.TARGET.SUFFIX`, so an example with a damaged header is still
recognised.  A file with neither such a header nor such a name is hand-written and skipped.
"""

import re
import shlex
from itertools import islice, takewhile
from pathlib import Path

from jobspec import targets
from jobspec.artifact import render
from jobspec.problems import SpecError, printable

ROOT = Path(__file__).parent.parent
FOLDERS = ("slurm", "k8s", "docker")
SPECS = ("jobs", "sites")

_HEADER = re.compile(r"# Rendered by `render-job (.*)`; edit the spec, not this file\.")
_HEADER_LINES = 3  # the first line, or the line below `#!`


def check(root: Path = ROOT, write: bool = False) -> str:
    """Return a line for each example that is out of date; with `write`, replace them, and return what cannot be."""
    endings = tuple(f".{targets.ending(name)}" for name in targets.names())  # such as .slurm.sh
    files = (file for folder in FOLDERS for file in sorted((root / folder).rglob("*")) if file.is_file())
    rendered = [file for file in files if f".{file.name}".endswith(endings) or _header(file)]
    if not rendered:
        return f"{printable(str(root))}: no rendered file in {', '.join(FOLDERS)}: call render.py of a clone\n"
    return "".join(_check(file, root, write) for file in rendered)


def _check(file: Path, root: Path, write: bool) -> str:
    name = printable(file.relative_to(root).as_posix())
    command = _header(file)
    if command is None:
        return f"{name}: the line `# Rendered by …` is missing at the top: render the file again\n"
    try:
        target, specs, overrides, sweep_index = _parse(command)
        # A header has only the names of the spec files.
        paths = [[root / folder / spec for folder in SPECS] for spec in specs]
        files = [str(next((path for path in places if path.exists()), places[0])) for places in paths]
        new = render(target, files, overrides, sweep_index=sweep_index, output=file.name).encode()
    except (ValueError, SpecError, OSError) as error:
        return f"{name}: cannot be rendered by `render-job {printable(command)}`\n{error}\n"
    if file.read_bytes() == new:
        return ""
    if write:
        file.write_bytes(new)
        return ""
    return f"{name}: differs from what its job gives today: `render-job check --write` renders it again\n"


def _header(file: Path) -> str | None:
    """Return the words after render-job in the command that rendered a file; None if the file names no command."""
    with file.open(encoding="utf-8", errors="replace") as stream:
        found = (_HEADER.fullmatch(line.rstrip("\n")) for line in islice(stream, _HEADER_LINES))
        return next((match[1] for match in found if match), None)


def _parse(command: str) -> tuple[str, list[str], list[str], int | None]:
    """Return target, names of the spec files, `--set` options and `--sweep-index`; ValueError for other commands."""
    target, *words = shlex.split(command)
    specs = list(takewhile(lambda word: not word.startswith("-"), words))
    options = list(zip(words[len(specs) :: 2], words[len(specs) + 1 :: 2], strict=True))
    if target not in targets.names() or not specs or any("/" in spec for spec in specs):
        raise ValueError("render-job never writes this command into a header: render the file again")
    sweep_index = next((int(value) for option, value in options if option == "--sweep-index"), None)
    return target, specs, [value for option, value in options if option == "--set"], sweep_index
