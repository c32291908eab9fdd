"""Types of single values in a job spec: names, text, paths, words of Slurm and of Kubernetes."""

import re
from typing import Annotated, Any, Literal

from jobspec.spec.value import Value, matching

# A line break in a directive line (#SBATCH, a comment, a path) starts a new line, which some program obeys.
# Quoting does not help, so such a value may hold neither a line break nor any other control character.
# Values that only become an argument or an environment variable may have line breaks and tabs.
_BREAKS = r"\u0000-\u001f\u007f-\u009f\u2028\u2029"
_LINE = rf"[^{_BREAKS}]+"
LINES = r"[^\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029]*"

LINES_EXPECTED = "text without control characters other than line breaks and tabs"
Lines = Annotated[str, matching(LINES, LINES_EXPECTED)]

DNS = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
DNS_NAME = rf"(?!.{{254}}){DNS}(?:\.{DNS})*"
_LABEL = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_JOB_NAME = 'a DNS label (a lower-case letter, then at most 62 lower-case letters, digits and "-")'
JobName = Annotated[str, matching(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", _JOB_NAME)]
DnsLabel = Annotated[str, matching(rf"(?!.{{64}}){DNS}", 'a DNS label (at most 63 lower-case letters, digits and "-")')]
DnsName = Annotated[str, matching(DNS_NAME, 'a DNS name (at most 253 lower-case letters, digits, "-" and ".")')]
LabelKey = Annotated[
    str, matching(rf"(?![^/]{{254}})(?:{DNS}(?:\.{DNS})*/)?{_LABEL}", "a Kubernetes label key such as example.com/pool")
]
_LABEL_VALUE = 'a Kubernetes label value (at most 63 letters, digits, "-", "_" and "."; a letter or digit at both ends)'
LabelValue = Annotated[str, matching(f"(?:{_LABEL})?", _LABEL_VALUE)]
ENV_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
EnvName = Annotated[str, matching(ENV_NAME, 'the name of a variable (letters, digits and "_", no digit first)')]
Image = Annotated[
    str, matching(r"[A-Za-z0-9/.][A-Za-z0-9._/:@+-]*", "an image reference such as registry.example/team/train:1.0")
]
_PATH = rf'/[^{_BREAKS}:,"\\$]*'


def _path_hint(value: str) -> str:
    if value.startswith("~"):
        return "write the full path: ~ is not expanded"
    alone = "so that the result depends on the spec alone"
    return f"write the full path: $ is not expanded, {alone}" if "$" in value else ""


_FOLDER = 'an absolute path without ":", ",", "$", quotes or backslashes'
FolderPath = Annotated[str, matching(_PATH, _FOLDER, _path_hint)]
_BELOW = r"(?!/)(?!(?:.*/)?\.\.(?:/|$))"
_SUB_PATH = 'a relative path without "..", ":", ",", "$", quotes and backslashes'
SubPath = Annotated[str, matching(rf'{_BELOW}[^{_BREAKS}:,"\\$]+', _SUB_PATH)]
_FILES = 'a path below the current folder without "..", "~" or "$", such as train.py or lib/*.py'
FilePattern = Annotated[str, matching(rf"{_BELOW}[^{_BREAKS}\\$~]+", _FILES)]
_WORD = "a word that begins with a letter, a digit or _, and may also contain . , : @ % + -"
SlurmWord = Annotated[str, matching(r"[A-Za-z0-9_][A-Za-z0-9_.,:@%+-]*", _WORD)]
_CONSTRAINT = "a Slurm constraint such as h100, h100|a100 or [rack1|rack2]"
SlurmConstraint = Annotated[str, matching(r"[A-Za-z0-9_(\[][A-Za-z0-9_.,:&|*()\[\]-]*", _CONSTRAINT)]
_RANGE = r"[0-9]{1,7}(?:-[0-9]{1,7}(?::[1-9][0-9]{0,6})?)?"
_ARRAY = rf"{_RANGE}(?:,{_RANGE})*(?:%[1-9][0-9]{{0,6}})?"
SlurmArray = Annotated[str, matching(_ARRAY, "a Slurm array such as 0-3, 0-15:4, 1,3,5 or 0-99%8")]


def _read_shell_line(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    if not re.fullmatch(_LINE, value):
        raise ValueError("write each line as a separate element" if "\n" in value else "")
    return value


_LINE_SCHEMA = {"type": "string", "pattern": f"^{_LINE}$"}
ShellLine = Annotated[str, Value("one line of bash", _read_shell_line, _LINE_SCHEMA)]
_SWEEP_KEY = rf"(?:train|env)\.{ENV_NAME}|args\.[A-Za-z_][A-Za-z0-9_-]*"
SweepKey = Annotated[str, matching(_SWEEP_KEY, "train.KEY, args.NAME or env.NAME, such as train.lr")]


def _read_swept(value: Any) -> bool | int | float | str:
    if isinstance(value, bool | int | float | str):
        return value
    raise ValueError


_SWEPT_SCHEMA = {"type": ["boolean", "number", "string"]}
SweptValue = Annotated[bool | int | float | str, Value("text, a number, true or false", _read_swept, _SWEPT_SCHEMA)]
# A number of one or two digits is taken for a count of GPUs; 4090 is a type.
_GPU = r"(?![0-9]{1,2}$)[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
GpuType = Annotated[str, matching(_GPU, "a type of GPU such as h100 or a100-80gb (procs_per_node says how many)")]
SlurmOption = Annotated[str, matching(r"[a-z][a-z0-9-]+", "the long name of an sbatch option, without --")]


def _read_port(value: Any) -> int | str:
    if value == "auto" or (type(value) is int and 1024 <= value <= 65535):
        return value  # type: ignore[no-any-return]
    raise ValueError


_PORT_SCHEMA = {"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1024, "maximum": 65535}]}
Port = Annotated[int | Literal["auto"], Value("auto or a port from 1024 to 65535", _read_port, _PORT_SCHEMA)]


def _read_option(value: Any) -> bool | int | str:
    if value is False:
        raise ValueError("leave out an option that you do not want")
    if isinstance(value, int) or (isinstance(value, str) and re.fullmatch(_LINE, value)):
        return value
    raise ValueError


_OPTION_SCHEMA = {"anyOf": [{"const": True}, {"type": "integer"}, _LINE_SCHEMA]}
OptionValue = Annotated[
    bool | int | str, Value("true (a flag), a whole number or one line of text", _read_option, _OPTION_SCHEMA)
]
