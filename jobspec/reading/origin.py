"""Origin of each value of a spec: a line of a file, a `--set` option, or the default."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from jobspec.problems import Path
from jobspec.reading.yaml_source import Source
from jobspec.spec.job import Job


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
    """Yield the values inside a value that was written; `read` is what it became in the job."""
    if isinstance(written, dict) and (written or isinstance(read, BaseModel)):
        fields = type(read).model_fields if isinstance(read, BaseModel) else {}
        for key in [*fields, *(key for key in written if key not in fields)]:
            if key in written:
                yield from _below((*path, key), written[key], getattr(read, key, None), source)
            else:
                yield from _default((*path, key), getattr(read, key))
    elif isinstance(written, list) and written:
        for number, element in enumerate(written):
            became = read[number] if isinstance(read, list) else None
            yield from _below((*path, number), element, became, source)
    else:
        place = source.items.get(path) or source.keys[path]  # --set may give a key without a value
        yield Origin(".".join(map(str, path)), written, "--set" if place.option else f"{place.name}:{place.line}")


def _default(path: Path, value: Any) -> Iterator[Origin]:
    if isinstance(value, BaseModel):
        for key in type(value).model_fields:
            yield from _default((*path, key), getattr(value, key))
    else:
        yield Origin(".".join(map(str, path)), value, "default")
