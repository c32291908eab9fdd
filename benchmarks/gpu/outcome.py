"""Exceptions for a check that does not return its record."""

from __future__ import annotations

from typing import Any


class Skipped(Exception):
    """This machine cannot run the check; the message says why."""


class Failed(Exception):
    """The check has found an error.  `record` holds the figures, so that they are kept too."""

    def __init__(self, message: str, record: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.record = record or {}
