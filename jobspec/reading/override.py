"""Apply `--set KEY=VALUE` options to a spec."""

import copy
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jobspec.problems import Path, Place, Problem, SpecError, option_place
from jobspec.reading.notation import hidden, is_secret
from jobspec.reading.yaml_source import MAX_DEPTH, Reader, Source
from jobspec.spec.fields import ENV_NAME

_KEY = re.compile(r"[.=\[:\s]")  # what follows a part of a key, also where = is forgotten


def override(source: Source, overrides: Sequence[str]) -> Source:
    """Return the source with each `KEY=VALUE` applied: KEY is a path with dots, VALUE is YAML.

    Without VALUE, a key that is there is removed.  The place of a value is in the option as typed.
    """
    result = replace(copy.deepcopy(source), earlier=source.secrets)
    problems: list[Problem] = []
    for number, assignment in enumerate(overrides, start=1):
        try:
            _apply(result, assignment, number)
        except SpecError as error:
            words = {*re.findall(ENV_NAME, assignment)}
            of_secret = is_secret(_KEY.split(assignment), source.secrets) or words & source.secrets
            problems += map(hidden, error.problems) if of_secret else error.problems
    if problems:
        raise SpecError(problems)
    return result


def _apply(source: Source, assignment: str, number: int) -> None:
    key, equals, value = assignment.partition("=")
    place = replace(option_place("--set", assignment, number), length=max(1, len(key)))
    if not equals or not key:
        raise SpecError([Problem(place, "not KEY=VALUE", "for example --set train.epochs=3")])
    if wrong := next((char for char in key if not char.isprintable() or char == "["), ""):
        hint = "a position in a list follows a dot: mounts.0.path"
        raise SpecError([Problem(place, f"character U+{ord(wrong):04X} is not allowed in KEY", hint)])
    if key.count(".") >= MAX_DEPTH:
        raise SpecError([Problem(place, f"nested deeper than {MAX_DEPTH} levels; a job spec never needs that many")])
    reader = Reader(value, place.name, replace(place, column=len(key) + 2))
    new = reader.document()
    *parents, last = key.split(".")
    parent: Any = source.values
    path: Path = ()
    for part in parents:
        step = _step(parent, part, path, place)
        path = (*path, step)
        if isinstance(parent, dict) and step not in parent:
            parent[step] = {}
            source.keys[path] = place
        parent = parent[step]
    step = _step(parent, last, path, place)
    path = (*path, step)
    for places in (source.keys, source.items):
        for old in [old for old in places if old[: len(path)] == path]:
            del places[old]
    if new is None and isinstance(parent, dict) and parent.get(step) is not None:
        del parent[step]
        return
    parent[step] = new
    source.keys[path] = place
    source.keys.update({path + below: found for below, found in reader.keys.items()})
    source.items.update({path + below: found for below, found in reader.items.items()})


def _step(parent: Any, part: str, path: Path, place: Place) -> str | int:
    """Return `part` as a key of `parent`, which is a mapping or a list."""
    if isinstance(parent, dict):
        return part
    if isinstance(parent, list) and re.fullmatch(r"[0-9]{1,5}", part) and int(part) < len(parent):
        return int(part)
    above = ".".join(map(str, path))
    kind = f"a list of length {len(parent)}" if isinstance(parent, list) else "not a mapping"
    hint = f"set the whole value: --set '{above}=…'"
    raise SpecError([Problem(place, f'"{above}" is {kind}; there is no "{part}" in it', hint)])
