"""The error file that a failing process leaves for torchrun; without it torchrun's table shows `<N/A>`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def record_for_torchrun(reason: str, traceback: str | None = None, environ: Mapping[str, str] = os.environ) -> None:
    """Write why this process fails into TORCHELASTIC_ERROR_FILE; do nothing if that is not set.

    Args:
        reason: the sentence to show; traceback: shown in its place if there is one.
    Source of the format: torch/distributed/elastic/multiprocessing/errors/error_handler.py, which needs torch.
    """
    file = environ.get("TORCHELASTIC_ERROR_FILE")
    if not file:
        return
    details = {"timestamp": str(int(time.time()))}
    if traceback is not None:
        details["py_callstack"] = traceback
    # The reason is printed already; an error about a full disk must not hide it.
    with suppress(OSError):
        Path(file).write_text(json.dumps({"message": {"message": reason, "extraInfo": details}}))
