"""Origin of each value of a spec: a line of a file, a `--set` option, or the default."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from jobspec.problems import Path
from jobspec.reading.yaml_source import Source
from jobspec.spec.job import Job

_NOWHERE = object()


@dataclass(frozen=True)
class Origin:
    """A value as it was written, or its default; `key` is a path as in `--set`: `mounts.0.path`."""

    key: str
    value: Any
    origin: str


def origins_of(source: Source, job: Job) -> Iterator[Origin]:
    """Yield every value of a job in the order of the job's keys; `source` is what the job was read from."""
    written = {**source.values, "name": job.name}  # a sweep adds its number to the name
    return _below((), written, job, source)


def _below(path: Path, written: Any, read: Any, source: Source) -> Iterator[Origin]:
    """Yield the values inside a value as it was written, or `_NOWHERE`; `read` is what it became in the job."""
    fields = type(read).model_fields if isinstance(read, BaseModel) else {}
    keys = written if isinstance(written, dict) else {}
    if keys or (fields and (written is _NOWHERE or isinstance(written, dict))):
        for key in [*fields, *(key for key in keys if key not in fields)]:
            yield from _below((*path, key), keys.get(key, _NOWHERE), getattr(read, key, None), source)
    elif isinstance(written, list) and written:
        for number, element in enumerate(written):
            became = read[number] if isinstance(read, list) else None
            yield from _below((*path, number), element, became, source)
    elif written is _NOWHERE:
        yield Origin(".".join(map(str, path)), read, "default")
    else:
        place = source.items.get(path) or source.keys[path]  # --set may give a key without a value
        yield Origin(".".join(map(str, path)), written, "--set" if place.option else f"{place.name}:{place.line}")
