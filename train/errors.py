"""Exceptions for mistakes that the person who started the run can fix, and how a failing process says why it ends."""

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn, TypeVar

Value = TypeVar("Value")


class UserError(Exception):
    """A mistake in flags, environment or files: shown as one paragraph without a traceback, exit code 1.

    The message says where, what is wrong, what is allowed and what to do.

    >>> raise UserError("--epochs is 0: give at least 1")
    Traceback (most recent call last):
    train.errors.UserError: --epochs is 0: give at least 1
    """


class SharedError(UserError):
    """A UserError that every rank raises with the same message, so one process of each node prints it."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or the name of its type if it has none."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def differences(of_ranks: Mapping[int, object]) -> str | None:
    """Return `2 on rank 0; 3 on rank 1, 2` for the values of ranks; None if all have the same."""
    listed = [f"{value} on {ranks}" for value, ranks in ranks_by_value(of_ranks).items()]
    return "; ".join(listed) if len(listed) > 1 else None


def ranks_by_value(of_ranks: Mapping[int, Value]) -> dict[Value, str]:
    """Return `rank 0, 2` for each of the values, in the order of the ranks."""
    ranks_of: dict[Value, list[str]] = {}
    for rank, value in of_ranks.items():
        ranks_of.setdefault(value, []).append(str(rank))
    return {value: f"rank {', '.join(ranks)}" for value, ranks in ranks_of.items()}


@contextmanager
def naming_failures(what: str) -> Iterator[None]:
    """Turn an OSError into a UserError: what failed, such as `--run-dir: cannot write runs/a`, and why."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{what}: {error.strerror or error}") from None  # NumPy's have a text of their own


def refuse_without(package: str, option: str, extra: str) -> None:
    """Raise UserError if `package` is not installed: `option` needs it, and our `extra` installs it."""
    if find_spec(package) is None:
        raise UserError(
            f"{option} needs the package {package}, which is not installed here: "
            f"pip install {package}, or pip install '.[{extra}]' in the folder of the repository"
        )


def report(error: Exception, head: str = "error") -> None:
    """Print an error, and record it for torchrun: a mistake of the user as one paragraph, others with traceback."""
    if isinstance(error, UserError):
        first_of_node = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) == "0"
        if first_of_node or not isinstance(error, SharedError):
            print(f"{head}: {error}", file=sys.stderr, flush=True)
        record_for_torchrun(str(error))
        return
    sys.excepthook(type(error), error, error.__traceback__)  # torch's excepthook puts the rank before each line
    sys.stderr.flush()
    trace = "".join(traceback.format_exception(error))
    record_for_torchrun(f"{type(error).__name__}: {error}", trace)


def leave(code: int) -> NoReturn:
    """End the process at once (docs/troubleshooting.md).

    After an error NCCL waits for work that never ends, and a thread may wait for a foreign server.  A thread of gloo
    that frees a tensor while Python shuts down aborts the process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def record_for_torchrun(reason: str, traceback: str | None = None, environ: Mapping[str, str] = os.environ) -> None:
    """Write why this process fails into TORCHELASTIC_ERROR_FILE; do nothing if that is not set.

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
