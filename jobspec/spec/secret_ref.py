"""The names of secrets, and where a cluster holds them; never their values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from jobspec.spec.fields import DNS_NAME, ENV_NAME
from jobspec.spec.value import Value


class SecretName(str):
    """The name of a variable whose value stays out of the spec; a Kubernetes cluster may hold it elsewhere."""

    secret: str | None  # the Secret that holds the value; None for the job's own
    key: str  # its key there; the variable's name unless the spec says otherwise

    def __new__(cls, name: str, secret: str | None = None, key: str | None = None) -> SecretName:
        made = super().__new__(cls, name)
        made.secret, made.key = secret, key or name
        return made


_SECRET_PARTS = {"secret": DNS_NAME, "key": r"(?!\.\.?$)(?!\.\.)[-A-Za-z0-9_.]{1,253}"}
_OUTSIDE = "from the environment or a Secret of the cluster"


def list_of_names(value: Mapping[Any, Any]) -> str:
    """Return the hint for a mapping of names to values; empty if one is no name of a variable."""
    if not value or not all(isinstance(name, str) and re.fullmatch(ENV_NAME, name) for name in value):
        return ""
    return f"write secrets: [{', '.join(value)}]; values come {_OUTSIDE}"


def _hint(value: Any) -> str:
    """Return the hint for an element that is neither a name nor a reference."""
    if isinstance(value, Mapping) and all(isinstance(parts, Mapping) for parts in value.values()):
        return ""
    name = ""
    if isinstance(value, str) and "=" in value.rstrip("="):
        name = value.partition("=")[0]
    elif isinstance(value, Mapping) and len(value) == 1:
        name = str(*value)
    if not re.fullmatch(ENV_NAME, name):
        name = "the name of the variable"
    return f"write only {name}; its value comes {_OUTSIDE}"


def _read_secret(value: Any) -> SecretName:
    if isinstance(value, str) and re.fullmatch(ENV_NAME, value):
        return SecretName(value)
    name, parts = next(iter(value.items())) if isinstance(value, Mapping) and len(value) == 1 else ("", None)
    if not isinstance(parts, Mapping):
        raise ValueError(_hint(value))
    known = isinstance(name, str) and re.fullmatch(ENV_NAME, name) and parts and parts.keys() <= _SECRET_PARTS.keys()
    if known and all(isinstance(part, str) and re.fullmatch(_SECRET_PARTS[key], part) for key, part in parts.items()):
        return SecretName(name, **parts)
    raise ValueError('secret must be a DNS name; key may have letters, digits, "-", "_" and "."')


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
