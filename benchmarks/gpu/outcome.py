"""How a check ends when it does not return its record, and how the parts of one check are put together."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.measure import replace_text

# The environment variable with the folder of the record.  A check may write more figures into the same folder.
RESULTS = "GPU_CHECKS_RESULTS"
# Where together() writes the parts that have ended, in case the process is killed before the others have.
_parts_file: Path | None = None


class Outcome(Exception):
    """A check has not passed; the message says why.  `record` holds the figures, so that they are kept too."""

    word: str

    def __init__(self, message: str, record: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.record = record or {}


class Skipped(Outcome):
    """This machine cannot run the check."""

    word = "skipped"


class OutOfTime(Outcome):
    """The time was over before the check was done; until then nothing had failed."""

    word = "out of time"


class Failed(Outcome):
    """The check has found an error."""

    word = "failed"


def require_torchvision() -> None:
    """Raise Skipped without the package that has resnet18 and that reads MNIST's files."""
    if find_spec("torchvision") is None:
        raise Skipped("torchvision is not installed: pip install torchvision")


def recorded(check: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the record of a check or of a part of a check, also if it fails."""
    try:
        return {"outcome": "passed", **check()}
    except Outcome as outcome:
        return {"outcome": outcome.word, "why": str(outcome), **outcome.record}
    except Exception as error:
        traceback.print_exc()
        return {"outcome": "failed", "why": f"{type(error).__name__}: {error}".partition("\n")[0]}


def together(parts: Mapping[str, Callable[[], dict[str, Any]]]) -> dict[str, Any]:
    """Run all parts of a check, even if some fail; return their records by name.

    Raises the worst outcome of a part, with the records of all: failed, then out of time, then skipped.
    """
    records = {}
    for name, part in parts.items():
        records[name] = recorded(part)
        if _parts_file is not None:
            write(_parts_file, records)
    for kind in (Failed, OutOfTime, Skipped):
        if any(record["outcome"] == kind.word for record in records.values()):
            whys = [f"{name}: {record.get('why', record['outcome'])}" for name, record in records.items()]
            raise kind("; ".join(whys), records)
    return records


def parts_file(file: Path) -> Path:
    """Return the file beside a check's record that holds the parts of the check that have ended."""
    return file.with_suffix(".parts")


def keep_parts_beside(file: Path) -> None:
    """Let this process's together() write the parts that have ended."""
    global _parts_file
    _parts_file = parts_file(file)


def write(file: Path, record: Mapping[str, Any]) -> None:
    """Write a record whole or not at all."""
    replace_text(file, json.dumps(record))
