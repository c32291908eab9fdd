"""Turn pydantic's errors into findings in the words of the spec's author."""

import re
import shlex
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from jobspec.problems import Finding, Path
from jobspec.reading import synonyms
from jobspec.reading.notation import dotted, shown
from jobspec.reading.yaml_source import Source, typed
from jobspec.spec import rules
from jobspec.spec.doubts import doubts
from jobspec.spec.fields import list_of_names
from jobspec.spec.job import Job
from jobspec.spec.shell import from_script, is_for_a_shell
from train.config import expected, nearest

_UNKNOWN = "extra_forbidden"
# Values by their names in other tools; judged by its letters, "gpu" would become "cpu".
_OTHER_NAMES = {"gpu": "cuda", "enroot": "pyxis", "singularity": "apptainer", "etcd": "c10d"}
_PLAIN = re.compile(r"[\w./][\w./=+-]*|--?[a-zA-Z][\w./=+-]*")  # texts that YAML reads as they are
KEY = "[key]"  # the last part of pydantic's path to a wrong key in a mapping with user-chosen names


def findings(error: ValidationError, source: Source) -> list[Finding]:
    """Return one finding for each pydantic error.  A misspelt key is not also reported as missing."""
    details = error.errors(include_url=False)
    unknown = [one["loc"] for one in details if one["type"] == _UNKNOWN]
    misspelt = {(*at[:-1], _similar_key(at)) for at in unknown} - source.keys.keys()
    return [_finding(one, source) for one in details if one["loc"] not in misspelt]


def _finding(detail: ErrorDetails, source: Source) -> Finding:
    path, kind, value = detail["loc"], detail["type"], detail["input"]
    context = detail.get("ctx", {})
    if kind == "string_type" and (value is None or isinstance(value, bool | int | float)):
        # Quotes help only if the quoted text is then accepted.
        text = _written(path, source) if value is not None else ""
        if refusal := _refusal(path, text):
            return _finding({**refusal, "loc": path, "input": value}, source)
    if path and path[-1] == KEY:
        return Finding(path[:-1], f"{dotted(path[:-2])}: a key must be {context['expected']}", on_key=True)
    if kind == "missing":
        *_, key = path
        hint = f"{key}: {_fields_at(path[:-1])[str(key)].description}"
        where = f" in {dotted(path[:-1])}" if path[:-1] else ""
        if path in source.removed:
            return Finding(path, f'"{key}" is removed here, but is required{where}', hint, on_key=True)
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
    hint = context.get("hint", "") or _hint(kind, value, wanted, path, source)
    # The carets go under the key if the value has several lines or none.
    on_key = value is None or isinstance(value, dict | list)
    return Finding(path, f"{dotted(path)} must be {wanted}, not {shown(value, path)}", hint, on_key)


def _written(path: Path, source: Source) -> str:
    return source.items[path].written if path in source.items else ""


def _refusal(path: Path, value: Any) -> ErrorDetails | None:
    """Return pydantic's error for a value at a path; None if the models of the spec accept it."""
    at = tuple(0 if isinstance(part, int) else part for part in path)
    for part in reversed(at):
        value = [value] if part == 0 else {part: value}
    try:
        Job.model_validate(value, strict=True)
    except ValidationError as error:
        details = error.errors(include_url=False)
        return next((one for one in details if one["loc"][: len(at)] == at and one["loc"][-1] != KEY), None)
    return None


def _hint(kind: str, value: Any, wanted: str, path: Path, source: Source) -> str:
    if instead := synonyms.value_here(path, value):
        return instead
    written = _written(path, source)
    if kind == "string_type" and (value is None or isinstance(value, bool | int | float)):
        text = f'"{written if value is not None else ""}"'
        place = source.items.get(path, source.keys.get(path))
        key = ".".join(map(str, path))
        # The shell would remove quotes around VALUE alone.  In a sweep the option has another key.
        if place and place.option and key.count(".") < len(path) and place.text.startswith(str(path[0])):
            text = f"--set {shlex.quote(f'{key}={text}')}"
        return f"put it in quotes: {text}" if value is not None else f"for an empty text write {text}"
    if kind == "string_type" and isinstance(value, dict) and len(value) == 1 and isinstance(path[-1], int):
        return 'put the line in quotes: in YAML, ": " begins a value'
    if path == ("resources", "memory") and value in (0, "0"):
        return "leave it out; on Slurm, slurm: {options: {mem: 0}} asks for all memory of a node"
    if kind in ("model_type", "list_type") and (fields := _fields_at(path)):
        keys = ", ".join(fields)
        return f"its keys: {keys}" if kind == "model_type" else f"a list of mappings with the keys {keys}"
    if path == ("secrets",) and isinstance(value, dict):
        return list_of_names(value)
    if kind == "list_type" and isinstance(value, str):
        return _command_hint(value, source) if path == ("command",) else f"write {path[-1]}: […]"
    if kind in ("int_type", "float_type", "bool_type") and isinstance(value, str) and written[:1] in ('"', "'"):
        plain = typed(value)
        by_yaml = f"; yaml.safe_load makes text of {value}, not of {value.replace('e', '.0e')}"
        hint = "leave the quotes out" + by_yaml * bool(re.fullmatch("[0-9]+e-[0-9]+", value))
        return hint if plain is not None and not _refusal(path, plain) else ""
    if kind == "literal_error" and isinstance(value, str):
        allowed = wanted.split('"')[1::2]
        known = _OTHER_NAMES.get(value.lower())
        guess = known if known in allowed else nearest(value, allowed)
        return f'did you mean "{guess}"?' if guess else ""
    return ""


def _command_hint(value: str, source: Source) -> str:
    """Return the list that a command line was probably meant to be; empty if that would be rejected or odd."""
    given = source.values.get("no_python") is True
    try:
        words = shlex.split(value)
        words = words if given else from_script(words)  # torchrun starts Python itself
        no_python = given or any(map(is_for_a_shell, words[:1]))
        spec = {"name": "a", "nodes": 1, "procs_per_node": 1, "command": words, "no_python": no_python}
        job = Job.model_validate(spec, strict=True)
    except ValueError:  # a quote that is not closed, no word at all, a control character
        return ""
    for_a_shell = re.search(r"[\n;|&<>]|^\s*\w+=", value)
    if for_a_shell or any([*rules.command_begins_with_what_runs(job), *doubts(job)]):
        return ""
    plain = [word if _PLAIN.fullmatch(word) and typed(word) == word else shown(word) for word in words]
    return f"write command: [{', '.join(plain)}]{' and no_python: true' if no_python and not given else ''}"


def _unknown_key(path: Path) -> Finding:
    key, above = str(path[-1]), path[:-1]
    message = f'unknown key "{key}"' + (f' in "{dotted(above)}"' if above else "")
    sections: list[Path] = [(), *((name,) for name in Job.model_fields)]
    homes = [dotted(section) or "the top level" for section in sections if key in _fields_at(section)]
    hint = f"allowed: {', '.join(_fields_at(above))}"
    home = synonyms.own_key_of(path)
    if home is not None and home[:-1] == above:
        hint = f'did you mean "{home[-1]}"?'
    elif home is not None:
        hint = f"write {dotted(home)} instead"
    elif (advice := synonyms.advice_for(path)) and "the top level" not in homes:
        hint = advice
    elif homes:
        hint = f'"{key}" belongs to {" or ".join(homes)}'
        hint += ", and is a type such as h100; procs_per_node says how many" if key == "gpu" else ""
    elif key.startswith("+") and any(isinstance(part, int) for part in above):
        hint = f"within a list, no key can have a +; write {key[1:]}"
    elif key.startswith("+"):  # in a file it would have been read as one
        hint = f"{key} works only in a file; --set '{key[1:]}=[…]' replaces the list"
    elif guess := _similar_key(path):
        hint = f'did you mean "{guess}"?'
    return Finding(path, message, hint, on_key=True)


def _similar_key(path: Path) -> str | None:
    home = synonyms.own_key_of(path)
    if home is not None:
        return str(home[-1]) if home[:-1] == path[:-1] else None
    if synonyms.advice_for(path):
        return None
    key, fields = synonyms.snake_case(str(path[-1])), _fields_at(path[:-1])
    return key if key in fields else nearest(str(path[-1]), fields)


def _fields_at(path: Path) -> Mapping[str, FieldInfo]:
    """Return the keys of the mapping at a path; none if they are user-chosen names."""
    model: type[BaseModel] | None = Job
    for part in path:
        if isinstance(part, str):
            field = model.model_fields.get(part) if model else None
            model = _model_in(field.annotation) if field else None
    return model.model_fields if model else {}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model in `Model`, `Model | None` or `list[Model]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for model in map(_model_in, get_args(annotation)) if model), None)
