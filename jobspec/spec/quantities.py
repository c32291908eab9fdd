"""Sizes and times with their units, and amounts of devices."""

import re
from typing import Annotated, Any

from jobspec.spec.value import Value

_LARGEST = 1 << 50  # bytes, 1024 TiB: anything larger is a typo


def _size_hint(value: Any) -> str:
    plain = re.fullmatch("[1-9][0-9]{0,8}", str(value))
    units = [unit for unit, most in (("MiB", 1 << 30), ("GiB", 1 << 20)) if plain and int(plain[0]) <= most]
    return f"add a unit: {' or '.join(f'{value}{unit}' for unit in units)}" if units else ""


def _read_size(value: Any) -> int:
    found = re.fullmatch(r"\s*([1-9][0-9]{0,8})\s*([MGT])i?B?\s*", str(value), re.IGNORECASE)
    if not found:
        raise ValueError(_size_hint(value))
    unit = found[2].upper()
    size = int(found[1]) << {"M": 20, "G": 30, "T": 40}[unit]
    if size > _LARGEST:
        raise ValueError("no node has more than 1024TiB")
    if value != f"{found[1]}{unit}iB":
        raise ValueError(f"did you mean {found[1]}{unit}iB?")
    return size


_SIZE_SCHEMA = {"type": "string", "pattern": "^[1-9][0-9]{0,8}(?:MiB|GiB|TiB)$"}
Size = Annotated[int, Value("a size such as 512MiB, 200GiB or 1TiB", _read_size, _SIZE_SCHEMA)]
"""Bytes."""


def _read_amount(value: Any) -> int | str:
    """Return a number of devices unchanged, and a size as a Kubernetes quantity such as 4Gi."""
    if type(value) is int and 1 <= value < 2**31:
        return value
    if type(value) is int:
        raise ValueError
    if isinstance(value, str) and re.fullmatch("[1-9][0-9]{0,8}", value):
        raise ValueError("leave the quotes out")
    return quantity(_read_size(value))


def quantity(size: int) -> str:
    """Write bytes (whole MiB) as a Kubernetes quantity: 200Gi, 512Mi."""
    for shift, unit in ((40, "Ti"), (30, "Gi"), (20, "Mi")):
        if size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    raise ValueError(f"{size} bytes are not whole MiB")


Amount = Annotated[
    int | str,
    Value(
        "a whole number of devices, or a size such as 4GiB",
        _read_amount,
        {"anyOf": [{"type": "integer", "minimum": 1, "exclusiveMaximum": 2**31}, _SIZE_SCHEMA]},
    ),
]
"""A number, or bytes as a Kubernetes quantity."""

_DURATION = r"(?=.*[1-9])(?:([0-9]{1,5})d)?(?:([0-9]{1,5})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,8})s)?"

_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_PART = r"\s*([0-9]{1,8}(?:\.[0-9]{1,4})?)\s*(d(?:ays?)?|h(?:ours?|rs?)?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?)\b"


def _duration_hint(value: Any) -> str:
    if type(value) is int and value > 0:
        units = [f"{value}{unit}" for unit in "smh" if re.fullmatch(_DURATION, f"{value}{unit}")]
        return f"add a unit: {' or '.join(units)}" if units else ""
    text = str(value)
    if found := re.fullmatch(r"[0-9dhm]*([dhm])[0-9]+", text):  # without the last unit
        text += {"d": "h", "h": "m", "m": "s"}[found[1]]
        return f"write {text}" if re.fullmatch(_DURATION, text) else ""
    found = re.fullmatch(r"(?:([0-9]{1,3})-)?([0-9]{1,3}):([0-9]{2}):([0-9]{2})", text)  # as Slurm writes it
    parts = zip(found.groups(), "dhms", strict=True) if found else ()
    written = "".join(f"{int(part)}{unit}" for part, unit in parts if part and int(part)) or _in_words(text.strip())
    return f"write {written}" if written else ""


def _in_words(text: str) -> str:
    """Return a time such as `2 hours` or `1.5h` as a spec writes it; empty for anything else."""
    if not re.fullmatch(rf"(?:{_PART})+", text, re.IGNORECASE):
        return ""
    parts = re.findall(_PART, text, re.IGNORECASE)
    rest = round(sum(float(number) * _SECONDS[unit[0].lower()] for number, unit in parts), 3)
    written = ""
    for unit, seconds in _SECONDS.items():
        count, rest = divmod(rest, seconds)
        written += f"{int(count)}{unit}" if count else ""
    return written if not rest and re.fullmatch(_DURATION, written) else ""


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
        "a time above 0 such as 90s, 30m, 2h or 1d12h", _read_duration, {"type": "string", "pattern": f"^{_DURATION}$"}
    ),
]
"""Seconds."""
