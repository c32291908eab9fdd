"""Types of single values in a job spec: names, text, sizes and times with units.

Each type is one `Value`: how it is read, and in words what is expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticCustomError, PydanticKnownError, core_schema


@dataclass(frozen=True)
class Value:
    """A field's type for pydantic.

    Args:
        expected: what is accepted, to follow "must be".
        read: the value from what the YAML holds.  Raises TypeError if that must be text and is not,
            ValueError with a hint (or none) if it is not accepted.
        schema: the JSON Schema of what the YAML holds.
    """

    expected: str
    read: Callable[[Any], Any]
    schema: Mapping[str, Any] = field(hash=False)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def validate(value: Any) -> Any:
            try:
                return self.read(value)
            except TypeError:
                raise PydanticKnownError("string_type") from None
            except ValueError as error:
                context = {"expected": self.expected, "hint": str(error)}
                raise PydanticCustomError("unexpected", "must be {expected}", context) from None

        return core_schema.no_info_plain_validator_function(validate)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**self.schema}


def matching(pattern: str, expected: str) -> Value:
    """Text that matches the whole of a regular expression (of the dialect that JSON Schema knows too)."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            # Quotes are the answer only if what is in them is then accepted.
            raise TypeError if re.fullmatch(pattern, "" if value is None else str(value)) else ValueError
        if not re.fullmatch(pattern, value):
            # Upper case and underscores are the usual slip in DNS labels.
            guess = value.lower().replace("_", "-")
            raise ValueError(f'did you mean "{guess}"?' if re.fullmatch(pattern, guess) else "")
        return value

    return Value(expected, read, {"type": "string", "pattern": f"^(?:{pattern})$"})


# A line break in a directive line (#SBATCH, a comment, a path) starts a new line there that somebody obeys.
# No quoting protects it, so no such value may hold one, nor another control character.
# Values that only ever become an argument or an environment variable may have line breaks and tabs.
_LINE = r"[^\u0000-\u001f\u007f-\u009f\u2028\u2029]+"
LINES = r"[^\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029]*"

LINES_EXPECTED = "text without control characters other than line breaks and tabs"
Lines = Annotated[str, matching(LINES, LINES_EXPECTED)]

_DNS = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
JobName = Annotated[
    str,
    matching(
        r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?",
        'a DNS label (a lower-case letter, then at most 62 lower-case letters, digits and "-")',
    ),
]
DnsLabel = Annotated[
    str, matching(rf"(?!.{{64}}){_DNS}", 'a DNS label (at most 63 lower-case letters, digits and "-")')
]
DnsName = Annotated[
    str,
    matching(rf"(?!.{{254}}){_DNS}(?:\.{_DNS})*", 'a DNS name (at most 253 lower-case letters, digits, "-" and ".")'),
]
LabelKey = Annotated[
    str,
    matching(
        rf"(?![^/]{{254}})(?:{_DNS}(?:\.{_DNS})*/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?",
        "a Kubernetes label key such as example.com/pool",
    ),
]
LabelValue = Annotated[
    str,
    matching(
        r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?",
        'a Kubernetes label value (at most 63 letters, digits, "-", "_" and ".")',
    ),
]
_ENV_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
EnvName = Annotated[
    str,
    matching(_ENV_NAME, 'the name of a variable (letters, digits and "_", no digit first)'),
]


class SecretName(str):
    """The name of a variable whose value stays out of the spec; a Kubernetes cluster may hold it elsewhere.

    Attributes:
        secret: the Secret that holds the value; None for the job's own.
        key: its key there; the variable's name unless the spec says otherwise.
    """

    secret: str | None
    key: str

    def __new__(cls, name: str, secret: str | None = None, key: str | None = None) -> SecretName:
        made = super().__new__(cls, name)
        made.secret, made.key = secret, key or name
        return made


_SECRET_PARTS = {
    "secret": rf"(?!.{{254}}){_DNS}(?:\.{_DNS})*",
    "key": r"(?!\.\.?$)(?!\.\.)[-A-Za-z0-9_.]{1,253}",
}


def _read_secret(value: Any) -> SecretName:
    if isinstance(value, str) and re.fullmatch(_ENV_NAME, value):
        return SecretName(value)
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, parts),) = value.items()
        if isinstance(parts, Mapping) and isinstance(name, str) and re.fullmatch(_ENV_NAME, name):
            known = parts and parts.keys() <= _SECRET_PARTS.keys()
            if known and all(isinstance(v, str) and re.fullmatch(_SECRET_PARTS[k], v) for k, v in parts.items()):
                return SecretName(name, **parts)
        raise ValueError('secret is a DNS name; key is letters, digits, "-", "_" and "."')
    raise ValueError


SecretRef = Annotated[
    SecretName,
    Value(
        "the name of a variable, or {HF_TOKEN: {secret: NAME, key: KEY}} with the Secret of Kubernetes and its key",
        _read_secret,
        {
            "anyOf": [
                {"type": "string", "pattern": f"^{_ENV_NAME}$"},
                {
                    "type": "object",
                    "minProperties": 1,
                    "maxProperties": 1,
                    "propertyNames": {"pattern": f"^{_ENV_NAME}$"},
                    "additionalProperties": {
                        "type": "object",
                        "minProperties": 1,
                        "additionalProperties": False,
                        "properties": {
                            key: {"type": "string", "pattern": f"^(?:{pattern})$"}
                            for key, pattern in _SECRET_PARTS.items()
                        },
                    },
                },
            ]
        },
    ),
]

Image = Annotated[
    str,
    matching(r"[A-Za-z0-9/.][A-Za-z0-9._/:@+-]*", "an image reference such as registry.example/team/train:1.0"),
]
_PATH = r'/[^\u0000-\u001f\u007f-\u009f\u2028\u2029:,"\\$]*'


def _read_path(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError if re.fullmatch(_PATH, str(value)) else ValueError
    if re.fullmatch(_PATH, value):
        return value
    if value.startswith("~"):
        raise ValueError("write the folder out: nothing expands ~ here")
    if "$" in value:
        raise ValueError("write the folder out: nothing expands $ here, and artifacts depend on the spec alone")
    raise ValueError


FolderPath = Annotated[
    str,
    Value(
        'an absolute path without ":", ",", "$", quotes and backslashes (container runtimes cut mounts there)',
        _read_path,
        {"type": "string", "pattern": f"^(?:{_PATH})$"},
    ),
]
SubPath = Annotated[
    str,
    matching(
        r'(?!/)(?!(?:.*/)?\.\.(?:/|$))[^\u0000-\u001f\u007f-\u009f\u2028\u2029:,"\\$]+',
        'a relative path without "..", ":", ",", "$", quotes and backslashes',
    ),
]
FilePattern = Annotated[
    str,
    matching(
        r"(?!/)(?!(?:.*/)?\.\.(?:/|$))[^\u0000-\u001f\u007f-\u009f\u2028\u2029\\$~]+",
        'a path below the current folder, such as train.py or lib/*.py; no "..", "~" and "$"',
    ),
]
SlurmWord = Annotated[
    str, matching(r"[A-Za-z0-9_][A-Za-z0-9_.,:@%+-]*", "a word of letters, digits and _ . , : @ % + -")
]
SlurmConstraint = Annotated[
    str,
    matching(
        r"[A-Za-z0-9_(\[][A-Za-z0-9_.,:&|*()\[\]-]*",
        "a Slurm constraint such as h100, h100|a100 or [rack1|rack2]",
    ),
]
SlurmArray = Annotated[
    str,
    matching(
        r"[0-9]{1,7}(?:-[0-9]{1,7}(?::[0-9]{1,7})?)?(?:,[0-9]{1,7}(?:-[0-9]{1,7}(?::[0-9]{1,7})?)?)*(?:%[1-9][0-9]{0,6})?",
        "a Slurm array such as 0-3, 0-15:4, 1,3,5 or 0-99%8",
    ),
]


def _read_shell_line(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    if not re.fullmatch(_LINE, value):
        raise ValueError("each line is an element of its own" if re.fullmatch(LINES, value) else "")
    return value


ShellLine = Annotated[str, Value("one line of bash", _read_shell_line, {"type": "string", "pattern": f"^{_LINE}$"})]
SweepKey = Annotated[str, matching(r"(?:train|env)\.[A-Za-z_][A-Za-z0-9_]*", "a key of train or env, such as train.lr")]


def _read_swept(value: Any) -> bool | int | float | str:
    if isinstance(value, bool | int | float | str):
        return value
    raise ValueError


SweptValue = Annotated[
    bool | int | float | str,
    Value("a plain value", _read_swept, {"type": ["boolean", "number", "string"]}),
]
GpuType = Annotated[str, matching(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", "a type of GPU such as h100 or a100-80gb")]
SlurmOption = Annotated[str, matching(r"[a-z][a-z0-9-]+", "the long name of an sbatch option, without --")]


_LARGEST = 1 << 50  # bytes, 1024 TiB: a slip of the finger is no size


def _read_size(value: Any) -> int:
    found = re.fullmatch(r"([1-9][0-9]{0,8})(MiB|GiB|TiB)", value) if isinstance(value, str) else None
    if not found:
        raise ValueError(_size_hint(value))
    size = int(found[1]) << {"MiB": 20, "GiB": 30, "TiB": 40}[found[2]]
    if size > _LARGEST:
        raise ValueError("no node has more than 1024TiB")
    return size


def _size_hint(value: Any) -> str:
    found = re.fullmatch(r"\s*([1-9][0-9]{0,8})\s*([MGT])i?[Bb]?\s*", str(value), re.IGNORECASE)
    return f"did you mean {found[1]}{found[2].upper()}iB?" if found else ""


_SIZE_SCHEMA = {"type": "string", "pattern": "^[1-9][0-9]{0,8}(?:MiB|GiB|TiB)$"}
Size = Annotated[
    int,
    Value(
        "a size such as 512MiB, 200GiB or 1TiB",
        _read_size,
        _SIZE_SCHEMA,
    ),
]
"""Bytes."""


def _read_amount(value: Any) -> int | str:
    """A number of devices as it is; bytes as a quantity of Kubernetes, such as 4Gi."""
    if type(value) is int and 1 <= value < 2**31:
        return value
    if type(value) is int:
        raise ValueError
    return quantity(_read_size(value))


def quantity(size: int) -> str:
    """Bytes (whole MiB) as a Kubernetes quantity: 200Gi, 512Mi."""
    for shift, unit in ((40, "Ti"), (30, "Gi"), (20, "Mi")):
        if size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    raise ValueError(f"{size} bytes are not whole MiB")


Amount = Annotated[
    int | str,
    Value(
        "a whole number of devices, or a size such as 4GiB",
        _read_amount,
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "exclusiveMaximum": 2**31},
                _SIZE_SCHEMA,
            ]
        },
    ),
]
"""A number, or bytes as a quantity of Kubernetes."""

_DURATION = r"(?=.*[1-9])(?:([0-9]{1,5})d)?(?:([0-9]{1,5})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,8})s)?"


def _duration_hint(value: Any) -> str:
    if type(value) is int:
        return f"with its unit: {value}s, {value}m or {value}h"
    found = re.fullmatch(r"(?:([0-9]{1,3})-)?([0-9]{1,3}):([0-9]{2}):([0-9]{2})", str(value))  # as Slurm has it
    parts = zip(found.groups(), "dhms", strict=True) if found else ()
    written = "".join(f"{int(part)}{unit}" for part, unit in parts if part and int(part))
    return f"write {written}" if written else ""


def _read_duration(value: Any) -> int:
    found = re.fullmatch(_DURATION, value) if isinstance(value, str) else None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0, 0, 0, 0)
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total == 0:
        raise ValueError(_duration_hint(value))
    return total


Duration = Annotated[
    int,
    Value(
        "a time above 0 such as 90s, 30m, 2h or 1d12h",
        _read_duration,
        {"type": "string", "pattern": f"^{_DURATION}$"},
    ),
]
"""Seconds."""


def _read_port(value: Any) -> int | str:
    if value == "auto" or (type(value) is int and 1024 <= value <= 65535):
        return value  # type: ignore[no-any-return]
    raise ValueError


Port = Annotated[
    int | Literal["auto"],
    Value(
        "auto or a port from 1024 to 65535",
        _read_port,
        {"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1024, "maximum": 65535}]},
    ),
]


def _read_option(value: Any) -> bool | int | str:
    if value is False:
        raise ValueError("leave an option out that is not wanted")
    if isinstance(value, int) or (isinstance(value, str) and re.fullmatch(_LINE, value)):
        return value
    raise ValueError


OptionValue = Annotated[
    bool | int | str,
    Value(
        "true (a flag), a whole number or one line of text",
        _read_option,
        {"anyOf": [{"const": True}, {"type": "integer"}, {"type": "string", "pattern": f"^{_LINE}$"}]},
    ),
]
