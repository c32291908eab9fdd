"""Types of single values in a job spec: names, text, paths, words of Slurm and Kubernetes, sizes, times, secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from jobspec.spec.value import Value, fitting, matching

# A line break in a directive line (#SBATCH, a comment, a path) starts a new line, which some program obeys.
# Quoting does not help, so such a value may hold neither a line break nor any other control character.
# Values that only become an argument or an environment variable may have line breaks and tabs.
_BREAKS = r"\u0000-\u001f\u007f-\u009f\u2028\u2029"
_LINE = rf"[^{_BREAKS}]+"
LINES = r"[^\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029]*"

LINES_EXPECTED = "text, without control characters"
Lines = Annotated[str, matching(LINES, LINES_EXPECTED)]

DNS = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
DNS_NAME = rf"(?!.{{254}}){DNS}(?:\.{DNS})*"
_LABEL = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_JOB_NAME = 'a DNS label such as my-job (a lower-case letter, then at most 62 lower-case letters, digits and "-")'
JobName = Annotated[str, matching(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", _JOB_NAME)]
DnsLabel = Annotated[str, matching(rf"(?!.{{64}}){DNS}", 'a DNS label such as team-a (at most 63 of a-z, 0-9 and "-")')]
DnsName = Annotated[str, matching(DNS_NAME, 'a DNS name such as team-a (at most 253 of a-z, 0-9, "-" and ".")')]
_RUNTIME = "a DNS name such as torch-distributed, or TrainingRuntime/NAME for one of the namespace"
RuntimeName = Annotated[str, matching(rf"(?:TrainingRuntime/)?{DNS_NAME}", _RUNTIME)]
_LABEL_KEY = rf"(?![^/]{{254}})(?:{DNS}(?:\.{DNS})*/)?{_LABEL}"
LabelKey = Annotated[str, matching(_LABEL_KEY, "a Kubernetes label key such as example.com/pool")]
_DEVICE = rf"(?!(?:[^/]*\.)?kubernetes\.io/)(?![^/]{{254}}){DNS}(?:\.{DNS})*/{_LABEL}"
Device = Annotated[str, matching(_DEVICE, "the full name that `kubectl describe node` shows, such as nvidia.com/gpu")]
_RESOURCE = rf"hugepages-[0-9A-Za-z]+|ephemeral-storage|{_DEVICE}"
_RESOURCES = "ephemeral-storage, hugepages-2Mi or the full name of a device, such as vpc.amazonaws.com/efa"
Resource = Annotated[str, matching(_RESOURCE, _RESOURCES)]
_LABEL_VALUE = 'a Kubernetes label value such as a100 (at most 63 letters, digits, "-", "_" and ".")'
LabelValue = Annotated[str, matching(f"(?:{_LABEL})?", _LABEL_VALUE)]
ENV_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
EnvName = Annotated[str, matching(ENV_NAME, 'the name of a variable (letters, digits and "_", no digit first)')]
_IMAGE = "an image reference such as registry.example/team/train:1.0"
Image = Annotated[str, matching(r"[A-Za-z0-9/.][A-Za-z0-9._/:@+-]*", _IMAGE)]
_PATH = rf'/[^{_BREAKS}:,"\\$]*'
_FOLDER = 'an absolute path such as /data, without ":", ",", "$", quotes or backslashes'
FolderPath = Annotated[str, matching(_PATH, _FOLDER)]
_BELOW = r"(?!/)(?!(?:.*/)?\.\.(?:/|$))"
_SUB_PATH = 'a relative path such as team/data, without "..", ":", ",", "$", quotes and backslashes'
SubPath = Annotated[str, matching(rf'{_BELOW}[^{_BREAKS}:,"\\$]+', _SUB_PATH)]
_FILES = 'a path below the current folder without "..", "~" or "$", such as train.py or lib/*.py'
FilePattern = Annotated[str, matching(rf"{_BELOW}[^{_BREAKS}\\$~]+", _FILES)]
_LINE_SCHEMA = {"type": "string", "pattern": f"^{_LINE}$"}
Line = Annotated[str, fitting(_LINE_SCHEMA, "one line of text")]
ShellLine = Annotated[str, fitting(_LINE_SCHEMA, "one line of bash")]
_SWEEP_KEY = rf"(?:train|env)\.{ENV_NAME}|args\.[A-Za-z_][A-Za-z0-9_-]*"
SweepKey = Annotated[str, matching(_SWEEP_KEY, "train.KEY, args.NAME or env.NAME, such as train.lr")]
_SWEPT_SCHEMA = {"type": ["boolean", "number", "string"]}
SweptValue = Annotated[bool | int | float | str, fitting(_SWEPT_SCHEMA, "text, a number, true or false")]
# A number of one or two digits is taken for a count of GPUs; 4090 is a type.
_GPU = r"(?![0-9]{1,2}$)[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
GpuType = Annotated[str, matching(_GPU, "a type of GPU such as h100 or a100-80gb (procs_per_node says how many)")]
SlurmOption = Annotated[str, matching(r"[a-z][a-z0-9-]+", "the long name of an sbatch option, without --")]
_PORT_SCHEMA = {"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1024, "maximum": 65535}]}
Port = Annotated[int | Literal["auto"], fitting(_PORT_SCHEMA, "auto or a port from 1024 to 65535")]
_HOST = "a host name with {node} for the name of the node, such as '{node}-ib'"
HostOfNode = Annotated[str, matching(r"[A-Za-z0-9._-]*\{node\}[A-Za-z0-9._-]*", _HOST)]
_OPTION_SCHEMA = {"anyOf": [{"const": True}, {"type": "integer"}, _LINE_SCHEMA]}
OptionValue = Annotated[bool | int | str, fitting(_OPTION_SCHEMA, "true (a flag), a whole number or one line")]


def _read_size(value: Any) -> int:
    found = re.fullmatch("([1-9][0-9]{0,8})([MGT])iB", str(value))
    if not found:
        raise ValueError
    return int(found[1]) << {"M": 20, "G": 30, "T": 40}[found[2]]


_SIZE_SCHEMA = {"type": "string", "pattern": "^[1-9][0-9]{0,8}(?:MiB|GiB|TiB)$"}
Size = Annotated[int, Value("a size such as 512MiB, 200GiB or 1TiB", _read_size, _SIZE_SCHEMA)]  # bytes


def _read_amount(value: Any) -> int | str:
    """Return a number of devices unchanged, and a size as a Kubernetes quantity such as 4Gi."""
    if type(value) is int:
        if 1 <= value < 2**31:
            return value
        raise ValueError
    return quantity(_read_size(value))


def quantity(size: int) -> str:
    """Write bytes (whole MiB) as a Kubernetes quantity: 200Gi, 512Mi."""
    shifts = {"Ti": 40, "Gi": 30, "Mi": 20}
    unit = next(unit for unit, shift in shifts.items() if size % (1 << shift) == 0)
    return f"{size >> shifts[unit]}{unit}"


_AMOUNT_SCHEMA = {"anyOf": [{"type": "integer", "minimum": 1, "exclusiveMaximum": 2**31}, _SIZE_SCHEMA]}
# A number, or bytes as a Kubernetes quantity.
Amount = Annotated[int | str, Value("a whole number of devices, or a size such as 4GiB", _read_amount, _AMOUNT_SCHEMA)]

_DURATION = r"(?=.*[1-9])(?:([0-9]{1,5})d)?(?:([0-9]{1,5})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,8})s)?"


def _read_duration(value: Any) -> int:
    found = re.fullmatch(_DURATION, value) if isinstance(value, str) else None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0, 0, 0, 0)
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total == 0:
        raise ValueError
    return total


_DURATION_SCHEMA = {"type": "string", "pattern": f"^{_DURATION}$"}
# Seconds.
Duration = Annotated[int, Value("a time above 0 such as 90s, 30m, 2h or 1d12h", _read_duration, _DURATION_SCHEMA)]


class SecretName(str):
    """The name of a variable whose value stays out of the spec; a Kubernetes cluster may hold it elsewhere."""

    secret: str | None  # the Secret that holds the value; None for the job's own
    key: str  # its key there; the variable's name unless the spec says otherwise

    def __new__(cls, name: str, secret: str | None = None, key: str | None = None) -> SecretName:
        made = super().__new__(cls, name)
        made.secret, made.key = secret, key or name
        return made


_SECRET_PARTS = {"secret": DNS_NAME, "key": r"(?!\.\.?$)(?!\.\.)[-A-Za-z0-9_.]{1,253}"}
_OUTSIDE = "write only names; the values come from the environment or a Secret of the cluster"


def _read_secret(value: Any) -> SecretName:
    if isinstance(value, str) and re.fullmatch(ENV_NAME, value):
        return SecretName(value)
    name, parts = next(iter(value.items())) if isinstance(value, Mapping) and len(value) == 1 else ("", None)
    if not isinstance(parts, Mapping) or not parts or not re.fullmatch(ENV_NAME, str(name)):
        raise ValueError(_OUTSIDE)
    if not all(
        isinstance(part, str) and re.fullmatch(_SECRET_PARTS.get(key, "(?!)"), part) for key, part in parts.items()
    ):
        raise ValueError('secret must be a DNS name; key may have letters, digits, "-", "_" and "."')
    return SecretName(name, **parts)


_NAME_SCHEMA = {"type": "string", "pattern": f"^{ENV_NAME}$"}
_PARTS_SCHEMA = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": False,
    "properties": {key: {"type": "string", "pattern": f"^(?:{parts})$"} for key, parts in _SECRET_PARTS.items()},
}
_REF_SCHEMA = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": 1,
    "propertyNames": {"pattern": f"^{ENV_NAME}$"},
    "additionalProperties": _PARTS_SCHEMA,
}
_EXPECTED = "the name of a variable, or {HF_TOKEN: {secret: NAME, key: KEY}} for a key of a Kubernetes Secret"
SecretRef = Annotated[SecretName, Value(_EXPECTED, _read_secret, {"anyOf": [_NAME_SCHEMA, _REF_SCHEMA]})]
