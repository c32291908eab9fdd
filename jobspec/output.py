"""Write the text of a command, and say why a file cannot be read or written."""

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path

from jobspec.problems import printable

OURS = "# Rendered by `render-job "


def write(text: str, output: str | None) -> None:
    """Write to stdout or a file, in UTF-8 whatever the locale.  A file has either the old content or all of the new."""
    data = text.encode()
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
        if path.exists() and not _may_be_replaced(path):
            raise FileExistsError(errno.EEXIST, "already exists, and render-job did not write it")
        beside.write_bytes(data)
        if path.exists():
            beside.chmod(path.stat().st_mode)
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise OSError(error.errno, error.strerror, output) from None


def _may_be_replaced(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(1000)
    return not head.strip() or OURS.encode() in head


def unusable_file(error: OSError) -> str:
    """Say which file could not be read or written, and why."""
    return f"{'stdout' if error.filename is None else printable(os.fsdecode(error.filename))}: {error.strerror}"
