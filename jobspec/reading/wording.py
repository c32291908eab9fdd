"""Turn pydantic's errors into findings in the words of the spec's author."""

import shlex
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from jobspec.filters import yaml
from jobspec.problems import Finding, Path
from jobspec.reading.notation import dotted, is_secret, shown
from jobspec.reading.yaml_source import Source
from jobspec.spec.job import Job
from jobspec.spec.value import QUOTES
from train.config import expected, nearest

_UNKNOWN = "extra_forbidden"
KEY = "[key]"  # the last part of pydantic's path to a wrong key in a mapping with user-chosen names


def findings(error: ValidationError, source: Source) -> list[Finding]:
    """Return one finding for each pydantic error.  A misspelt key is not also reported as missing."""
    details = error.errors(include_url=False)
    unknown = [one["loc"] for one in details if one["type"] == _UNKNOWN]
    misspelt = {(*at[:-1], _meant(at)) for at in unknown} - source.keys.keys()
    return [_finding(one, source) for one in details if one["loc"] not in misspelt]


def _finding(detail: ErrorDetails, source: Source) -> Finding:
    path, kind, value = detail["loc"], detail["type"], detail["input"]
    context = detail.get("ctx", {})
    if path and path[-1] == KEY:
        return Finding(path[:-1], f"{dotted(path[:-2])}: a key must be {context['expected']}", on_key=True)
    if kind == "missing":
        *_, key = path
        hint = f"{key}: {_fields_at(path[:-1])[str(key)].description}"
        where = f" in {dotted(path[:-1])}" if path[:-1] else ""
        return Finding(path[:-1], f'"{key}" is missing{where}', hint, on_key=True)
    if kind == _UNKNOWN:
        return _unknown_key(path)
    if kind == "too_short":
        return Finding(path, f"{dotted(path)} must not be empty")
    if kind == "unknown_name":
        hint = f'did you mean "{context["nearest"]}"?' if context["nearest"] else ""
        message = f"{dotted(path)}: {shown(value)} is none of {context['allowed']}"
        return Finding(path, message, hint, on_key=value is None)
    if kind == "keys_disagree":
        return Finding((*path, context["key"]), f"{dotted(path)}.{detail['msg']}", on_key=True)
    wanted = expected(detail)
    if wanted is None:
        return Finding(path, f"{dotted(path)}: {detail['msg']}", on_key=True)
    hint = context.get("hint", "")
    if kind == "model_type":
        hint = f"its keys: {', '.join(_fields_at(path))}"
    elif kind == "list_type" and isinstance(value, str):
        words = ", ".join(map(yaml, value.removeprefix("python ").split())) if path == ("command",) else "…"
        hint = f"write {path[-1]}: [{words}]"
    elif hint == QUOTES and is_secret(path, source.secrets):
        hint = ""
    elif hint == QUOTES and path in source.items and not isinstance(value, dict):
        place = source.items[path]
        quoted = f'"{place.written}"'
        hint += f": {shlex.quote(quoted) if place.option else quoted}"  # a shell removes the outer quotes
    elif value is None and path[:-1] in (("slurm", "options"), ("slurm", "srun_options")):  # {mail-type: END,FAIL}
        hint = 'within { } a value with a comma needs quotes, such as "END,FAIL"'
    # The carets go under the key if the value has several lines or none.
    on_key = value is None or isinstance(value, dict | list)
    return Finding(path, f"{dotted(path)} must be {wanted}, not {shown(value, path, source.secrets)}", hint, on_key)


def _unknown_key(path: Path) -> Finding:
    above, key = path[:-1], str(path[-1])
    message = f'unknown key "{key}"' + (f' in "{dotted(above)}"' if above else "")
    if guess := _meant(path):
        hint = f'did you mean "{guess}"?'
    elif homes := _homes(key):
        hint = f'"{key}" belongs to {" or ".join(dotted(home) or "the top level" for home in homes)}'
    else:
        hint = f"allowed: {', '.join(_fields_at(above))}"
    return Finding(path, message, hint, on_key=True)


def _meant(path: Path) -> str | None:
    """Return the key of the same mapping that an unknown one stands for; None if it belongs to another mapping."""
    key = str(path[-1])
    return None if _homes(key) else nearest(key, _fields_at(path[:-1]))


def _homes(key: str) -> list[Path]:
    """Return the paths of the mappings that have a key."""
    every: list[Path] = [(), *((name,) for name in Job.model_fields)]
    return [path for path in every if key in _fields_at(path)]


def _fields_at(path: Path) -> Mapping[str, FieldInfo]:
    """Return the keys of the mapping at a path; none if they are user-chosen names."""
    model: type[BaseModel] | None = Job
    for part in path:
        if isinstance(part, str):
            field = model.model_fields.get(part) if model else None
            model = _model_in(field.annotation) if field else None
    return model.model_fields if model else {}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for model in map(_model_in, get_args(annotation)) if model), None)
