"""Show what would change in a file, as `diff -u` prints it and `patch` reads it."""

import difflib
import io
from collections.abc import Iterator


def difference(old: bytes, new: str, old_name: str, new_name: str) -> str:
    """Return a unified diff from `old` to `new`; empty if both hold the same bytes.

    Bytes of `old` that are not UTF-8 are surrogate escapes (os.fsencode), so the diff keeps them unchanged.
    """
    before, after = _lines(old.decode(errors="surrogateescape")), _lines(new)
    return "".join(_ended(difflib.unified_diff(before, after, old_name, new_name)))


def _lines(text: str) -> list[str]:
    """Split into lines with their ends.  Only a line feed ends a line; Unicode's other line breaks do not."""
    return list(io.StringIO(text, newline="\n"))


def _ended(lines: Iterator[str]) -> Iterator[str]:
    """Add a line feed to a last line that has none, and the note that diff prints for it."""
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
