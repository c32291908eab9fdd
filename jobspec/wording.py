"""pydantic's errors → findings in the words of the person who wrote the spec."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from jobspec.problems import Finding, Path
from jobspec.source import Source
from jobspec.spec import Job
from train.config import nearest

_UNKNOWN = "extra_forbidden"
_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "literal_error": "{expected}",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "finite_number": "a finite number",
    "unexpected": "{expected}",
}


def findings(error: ValidationError, source: Source) -> list[Finding]:
    """One finding for each error that pydantic found; a key that is there misspelt is not also missing."""
    details = error.errors(include_url=False)
    misspelt = {(*detail["loc"][:-1], _meant(detail["loc"])) for detail in details if detail["type"] == _UNKNOWN}
    return [_finding(detail, source) for detail in details if detail["loc"] not in misspelt]


def dotted(path: Path) -> str:
    """A path as people write it: ("mounts", 0, "path") is `mounts[0].path`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in path]
    return "".join(parts).removeprefix(".")


def shown(value: Any) -> str:
    """A value in an error: short, in the notation of YAML."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = json.dumps(value, ensure_ascii=False) if value is not None else "nothing"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _finding(detail: ErrorDetails, source: Source) -> Finding:
    path, kind, value = detail["loc"], detail["type"], detail["input"]
    context = detail.get("ctx", {})
    if path and path[-1] == "[key]":
        return Finding(path[:-1], f"{dotted(path[:-2])}: a key must be {context['expected']}", on_key=True)
    if kind == "missing":
        return _missing(path)
    if kind == _UNKNOWN:
        return _unknown_key(path)
    if kind == "too_short":
        return Finding(path, f"{dotted(path)} must not be empty")
    if kind == "unknown_name":
        guess = context["nearest"]
        hint = f'did you mean "{guess}"?' if guess else ""
        return Finding(path, f'{dotted(path)}: "{value}" is none of {context["allowed"]}', hint)
    if kind == "keys_disagree":
        return Finding((*path, context["key"]), f"{dotted(path)}.{detail['msg']}", on_key=True)
    if kind in _EXPECTED:
        limits = {name: f"{limit:g}" if isinstance(limit, float) else limit for name, limit in context.items()}
        expected = _EXPECTED[kind].format(**limits).replace("'", '"')
        hint = context.get("hint", "") or _hint(kind, value, expected, path, source)
        # Carets under the key where the value is several lines or none.
        on_key = value is None or isinstance(value, dict | list)
        return Finding(path, f"{dotted(path)} must be {expected}, not {shown(value)}", hint, on_key)
    return Finding(path, f"{dotted(path)}: {detail['msg']}", on_key=True)


def _hint(kind: str, value: Any, expected: str, path: Path, source: Source) -> str:
    written = source.items[path].written if path in source.items else ""
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f'put it in quotes: "{written}"'
    if kind == "string_type" and value is None:
        return 'for an empty text write ""'
    if kind in ("int_type", "float_type", "bool_type") and isinstance(value, str) and written[:1] in ('"', "'"):
        return "without the quotes it is one" if value in ("true", "false") or value.isdigit() else ""
    if kind == "literal_error" and isinstance(value, str):
        allowed = expected.split('"')[1::2]
        # By its letters "gpu" would be "cpu".
        guess = "cuda" if value.lower() == "gpu" and "cuda" in allowed else nearest(value, allowed)
        return f'did you mean "{guess}"?' if guess else ""
    return ""


def _missing(path: Path) -> Finding:
    model = _section(path[:-1])
    where = f" in {dotted(path[:-1])}" if path[:-1] else ""
    meaning = model.model_fields[str(path[-1])].description if model else ""
    return Finding(path[:-1], f'"{path[-1]}" is missing{where}', f"{path[-1]}: {meaning}", on_key=True)


def _unknown_key(path: Path) -> Finding:
    key, above = str(path[-1]), path[:-1]
    message = f'unknown key "{key}"' + (f' in "{dotted(above)}"' if above else "")
    homes = [dotted(home) or "the top level" for home, fields in _sections() if key in fields]
    guess = _meant(path)
    if homes:
        return Finding(path, message, f'"{key}" belongs to {" or ".join(homes)}', on_key=True)
    return Finding(path, message, f'did you mean "{guess}"?' if guess else "", on_key=True)


def _meant(path: Path) -> str | None:
    """The key that an unknown key was probably meant to be."""
    model = _section(path[:-1])
    return nearest(str(path[-1]), model.model_fields) if model else None


def _sections() -> Iterator[tuple[Path, set[str]]]:
    """The top level and each section directly below it, with their keys."""
    yield (), set(Job.model_fields)
    for name in Job.model_fields:
        model = _section((name,))
        if model:
            yield (name,), set(model.model_fields)


def _section(path: Path) -> type[BaseModel] | None:
    """The model of the mapping at a path; None if there is none."""
    model: type[BaseModel] | None = Job
    for part in path:
        if isinstance(part, str):
            field = model.model_fields.get(part) if model else None
            model = _model_in(field.annotation) if field else None
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in `Model`, `Model | None` or `list[Model]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for model in map(_model_in, get_args(annotation)) if model), None)
