"""Write the text of a command, and say why a file cannot be read or written."""

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from jobspec.problems import printable


def write(text: str, output: str | None) -> None:
    """Write to stdout or a file, in UTF-8 whatever the locale.  A file has either the old content or all of the new."""
    data = text.encode(errors="surrogateescape")  # a diff may hold bytes of a file that are not UTF-8
    if output is None:
        if sys.stdout is not None:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        elif data:  # closed by the caller
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return
    path = Path(os.path.realpath(output))  # a link stays
    beside = path.with_name(f".{os.getpid()}.tmp")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)  # a pipe or device such as /dev/stdout is written to, never replaced
            return
        beside.write_bytes(data)
        if path.exists():
            beside.chmod(path.stat().st_mode)
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise OSError(error.errno, error.strerror, output) from None


def must_not_replace(output: str | None, read: Sequence[str], force: bool, option: str = "-o") -> str:
    """Say why a file must not be replaced: the command reads it, or render.py did not write it; empty if it may be."""
    if output is None or not Path(output).is_file():
        return ""
    name = printable(output)
    if any(Path(file).exists() and Path(output).samefile(file) for file in read):
        return f"{name}: is read by this command, and {option} must not replace it\n  hint: name another file"
    with Path(output).open("rb") as file:
        head = file.read(1000)
    if force or not head.strip() or b"# Rendered by `render.py " in head:
        return ""
    return f"{name}: already exists, and render.py did not write it\n  hint: --force replaces it"


def unusable_file(error: OSError) -> str:
    """Say which file could not be read or written, why, and what to do."""
    if error.filename is None:
        return f"stdout: {error.strerror}"
    path = Path(os.fsdecode(error.filename))
    hint = ""
    if isinstance(error, IsADirectoryError):
        hint = "name a file in it"
    elif isinstance(error, FileNotFoundError) and not path.parent.is_dir():
        hint = f"there is no folder {path.parent}"
    elif isinstance(error, FileNotFoundError) and path.is_symlink():
        hint = f"it is a link to {path.readlink()}, which is not there"
    elif isinstance(error, FileNotFoundError):
        from train.config import nearest

        stems = {entry.stem: entry for entry in sorted(path.parent.iterdir())}
        meant = nearest(path.stem, stems)
        alike = [entry.name for entry in stems.values() if entry.suffix == path.suffix]
        listed = f"files in {path.parent}: {', '.join(alike[:10])}" if alike else ""
        hint = f"did you mean {stems[meant]}?" if meant else listed
    text = f"{printable(str(path))}: {error.strerror}"
    return f"{text}\n  hint: {printable(hint)}" if hint else text
