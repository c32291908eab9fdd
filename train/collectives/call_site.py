"""Where the user's code is: the method of Run that it has called, and the line of the call."""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from types import FrameType

# The generators behind run.batches() and run.epochs(), which run between two rounds of the user's loop.
_LOOPS = {"_batches": "batches", "epochs": "epochs"}


def call_site(frames: Iterable[tuple[FrameType, int]]) -> str | None:
    """Return `run.step() at train.py:31` for the outermost call of a method of Run; None outside of one.

    frames: each with its line, the outermost first.
    """
    for (caller, line), (callee, _) in pairwise(frames):
        module, method = callee.f_globals.get("__name__"), callee.f_code.co_name
        if module == "train.loop.batch_loop":
            method = _LOOPS.get(method, "_")
        elif module != "train.run":
            continue
        if not method.startswith("_"):
            return f"run.{method}() at {Path(caller.f_code.co_filename).name}:{line}"
    return None
