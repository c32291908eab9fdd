"""Exceptions for mistakes that the person who started the run can fix, and helpers for them."""

from importlib.util import find_spec


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


def refuse_without(package: str, option: str, extra: str) -> None:
    """Raise UserError if `package` is not installed: `option` needs it, and our `extra` installs it."""
    if find_spec(package) is None:
        raise UserError(
            f"{option} needs the package {package}, which is not installed here: "
            f"pip install {package}, or pip install '.[{extra}]' in the folder of the repository"
        )
