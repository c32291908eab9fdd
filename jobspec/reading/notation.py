"""Keys and values of a spec as messages write them, without the value of a secret, wherever people put it."""

import json
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jobspec.problems import Path, Place, Problem, key_of, masked
from jobspec.spec.fields import ENV_NAME

Line = tuple[str, int, int]  # the name of a file or option, the number of the option, and the number of the line
_SECTIONS = ("secrets", "+secrets", "secret")
_ASSIGNED = re.compile(rf"({ENV_NAME})=(?=[^=])")  # `==` at an end is a value in base64


def is_secret(path: Sequence[str | int], names: Container[str | int] = ()) -> bool:
    """Return True for what stands in `secrets`, or belongs to a variable with one of these names."""
    return bool(path) and (path[0] in _SECTIONS or _is_value(path, names))


def _is_value(path: Sequence[str | int], names: Container[str | int]) -> bool:
    """Return True for the value of such a variable: in `env` or `sweep`, or where no variable belongs."""
    match path:
        case ["env", name, *_] | ["sweep", "env", name, *_] | ["sweep", str(name), *_]:
            return name in names or str(name).removeprefix("env.") in names
    return bool(path) and path[0] in names


def names_of_secrets(values: Mapping[str, Any]) -> frozenset[str]:
    written = values.get("secrets")  # may have mistakes
    listed = [one if isinstance(one, Mapping) else [one] for one in (written if isinstance(written, list) else [])]
    return frozenset(str(name) for one in listed for name in one)


def visible_name(text: str) -> str:
    """Return what a message may show of a text in the place of a secret's name: a name, alone or before `=`."""
    plain = text.strip("\"'")
    found = _ASSIGNED.match(plain)
    return found[1] if found else plain if re.fullmatch(rf"\+?{ENV_NAME}", plain) else ""


def line_of(place: Place) -> Line:
    return place.name, place.option, place.line


def lines_with_secrets(names: Container[str | int], *places: Mapping[Path, Place]) -> frozenset[Line]:
    """Return the lines that may show a secret's value: in `secrets`, or of these variables."""
    return frozenset(line_of(place) for found in places for path, place in found.items() if is_secret(path, names))


def hidden(problem: Problem) -> Problem:
    """Return the problem without its source line, of which only the name of a variable or key stays."""
    place = problem.place
    name = key_of(place.written) if place.option and place.column == 1 else visible_name(place.written)
    return replace(problem, place=masked(place, name if place.length > 1 else ""))


def dotted(path: Path) -> str:
    """Return a path as people write it: ("mounts", 0, "path") is `mounts[0].path`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in path]
    return "".join(parts).removeprefix(".")


def shown(value: Any, path: Path = (), names: Container[str | int] = ()) -> str:
    """Return a value for a message: short, in YAML's notation.

    `path` is where it stands, if that may be a secret, and `names` are those of the secrets.
    """
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if _is_value(path, names):
        return '"…"'
    if is_secret(path) and value is not None and visible_name(str(value)) != value:
        return f'"{visible_name(str(value))}…"'
    text = json.dumps(value, ensure_ascii=False) if value is not None else "nothing"
    return text if len(text) <= 60 else f"{text[:57]}..."
