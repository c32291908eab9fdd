"""Turn the `sweep` of a spec into one spec for each combination of its values; the last key changes fastest.

The number of the combination is added to the folders that `python -m train` writes to, as a subfolder, and to the name
of the file that it exports.  So no two runs share a folder or file.
"""

import copy
import itertools
import math
import posixpath
from collections.abc import Iterator
from typing import Any

from jobspec.problems import Finding, Path, SpecError
from jobspec.reading.yaml_source import Source

MOST = 1000  # the most combinations; Slurm's MaxArraySize allows numbers up to 1000 unless a site changes it


def size(source: Source) -> int:
    """Return the number of combinations; 0 without a sweep, or if it is not a mapping with non-empty lists."""
    sweep = source.values.get("sweep") or {}
    if not isinstance(sweep, dict) or not all(
        isinstance(values, list) and values and _path(key) for key, values in sweep.items()
    ):
        return 0
    number = math.prod(map(len, sweep.values())) if sweep else 0
    if number > MOST:
        message = f"sweep has {number} combinations; at most {MOST} are allowed"
        raise SpecError([source.locate(Finding(("sweep",), message, on_key=True))])
    return number


def combinations(source: Source, *, named: bool) -> Iterator[Source]:
    """Yield the spec of each combination; `named`: each is a separate job, and its name gets the number."""
    sweep = source.values["sweep"]
    chosen = itertools.product(*(range(len(values)) for values in sweep.values()))
    for number, positions in enumerate(chosen):
        values = copy.deepcopy(source.values)
        suffix = f"-{number}" if named else ""
        one = Source(values, dict(source.keys), dict(source.items), suffix, source.earlier)
        for key, position in zip(sweep, positions, strict=True):
            _put(one, _path(key), sweep[key][position], ("sweep", key, position))
        train: Any = values.get("train")
        for key in ("run_dir", "checkpoint_dir", "export"):
            if isinstance(train, dict) and isinstance(train.get(key), str):
                # Of a file the number is in the name, because `python -m train` makes no folder for it.
                stem, ending = posixpath.splitext(train[key])
                train[key] = f"{stem}-{number}{ending}" if key == "export" else f"{train[key].rstrip('/')}/{number}"
        yield one


def _path(key: Any) -> Path:
    """Return where the values of a key such as train.lr belong; empty for any other key."""
    section, _, name = str(key).partition(".")
    return (section, name) if section in ("train", "args", "env") and name and "." not in name else ()


def _put(source: Source, path: Path, value: Any, read_at: Path) -> None:
    section, key = path
    place = source.items[read_at]
    if section == "args":
        command, text = source.values.get("command"), str(value)
        if isinstance(value, bool):
            text = text.lower()
        elif isinstance(value, int | float):
            text = place.written  # 001 is not 1
        if isinstance(command, list):
            source.values["command"] = [*command, f"--{key}={text}"]
            source.items["command", len(command)] = place
        return
    there = source.values.get(str(section))
    if there is None:  # no such key, or a key without a value
        there = source.values[str(section)] = {}
    if isinstance(there, dict):
        there[key] = value
        source.keys[path] = source.keys[read_at[:2]]
        source.items[path] = place
