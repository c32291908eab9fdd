"""What would change in a file: the lines, as `diff -u` shows them and `patch` reads them."""

from __future__ import annotations

import difflib
import io
from collections.abc import Iterator


def difference(old: bytes, new: str, old_name: str, new_name: str) -> str:
    """A unified diff from `old` to `new`; empty if they are the same bytes.

    Bytes of `old` that are no UTF-8 are surrogate escapes (os.fsencode's), so that the diff holds them unchanged.
    """
    before, after = _lines(old.decode(errors="surrogateescape")), _lines(new)
    return "".join(_ended(difflib.unified_diff(before, after, old_name, new_name)))


def _lines(text: str) -> list[str]:
    """Lines with their ends; only a line feed ends one, whatever else Unicode counts as a line break."""
    return list(io.StringIO(text, newline="\n"))


def _ended(lines: Iterator[str]) -> Iterator[str]:
    """A last line without a line feed gets one here, and a note that it has none."""
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
