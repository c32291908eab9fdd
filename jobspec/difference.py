"""Show what would change in a file, as `diff -u` prints it and `patch` reads it."""

import difflib
import io


def difference(old: bytes, new: str, old_name: str, new_name: str) -> str:
    """Return a unified diff from `old` to `new`; empty if both hold the same bytes.

    Bytes of `old` that are not UTF-8 are surrogate escapes (os.fsencode), so the diff keeps them unchanged.
    """
    # Only a line feed ends a line; Unicode's other line breaks do not.
    before, after = (list(io.StringIO(text, newline="\n")) for text in (old.decode(errors="surrogateescape"), new))
    lines = difflib.unified_diff(before, after, old_name, new_name)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
