"""Compose files as compose reads them: YAML, then variables in every text, then one container a service."""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from tests.clusters import YAML

# `$$`, `$NAME`, `${NAME}`, `${NAME:?message}`; compose knows further forms, which no artifact of ours has.
_VARIABLE = re.compile(
    r"\$(?:(\$)|([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?::\?([^}]*))?\}|(.?))", re.DOTALL
)


class MissingError(Exception):
    """A variable that the file demands is not set."""


def read(text: str, environ: Mapping[str, str]) -> Any:
    """The file's content with all variables put in.

    Raises MissingError for `${NAME:?message}` without a value, ValueError for a `$` that compose would refuse.
    Source: the Compose Specification, 12-interpolation.md.
    """
    return _interpolated(yaml.load(text, YAML), environ)


def _interpolated(value: Any, environ: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: _put_in(found, environ), value)
    if isinstance(value, list):
        return [_interpolated(item, environ) for item in value]
    if isinstance(value, dict):
        return {key: _interpolated(item, environ) for key, item in value.items()}
    return value


def _put_in(found: re.Match[str], environ: Mapping[str, str]) -> str:
    dollar, bare, braced, message, _ = found.groups()
    if dollar:
        return "$"
    if not (bare or braced):
        raise ValueError(f"compose refuses {found.group()!r}")
    if message is not None and not environ.get(braced):
        raise MissingError(f"{braced}: {message}")
    return environ.get(bare or braced, "")
