"""Run one check in this process and write its record: `python -m benchmarks.gpu.one FUNCTION DEVICE FILE`."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from benchmarks.gpu.checks import Check
from benchmarks.gpu.outcome import Failed, Skipped


def outcome(check: Check, device: str) -> dict[str, Any]:
    """Return the record of a check, whichever way it ends."""
    try:
        return {"outcome": "passed", **check.load()(device)}
    except Skipped as reason:
        return {"outcome": "skipped", "why": str(reason)}
    except Failed as error:
        return {"outcome": "failed", "why": str(error), **error.record}
    except Exception as error:
        traceback.print_exc()
        return {"outcome": "failed", "why": f"{type(error).__name__}: {error}".partition("\n")[0]}


if __name__ == "__main__":
    function, device, file = sys.argv[1:]
    result = outcome(Check("", function, 0), device)
    partial = Path(file).with_suffix(".partial")
    partial.write_text(json.dumps(result))
    partial.rename(file)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # an NCCL group whose peer is gone may wait forever in its destructor
