"""Sizes and times with their units, and amounts of devices."""

import re
from typing import Annotated, Any

from jobspec.spec.value import Value

_LARGEST = 1 << 50  # bytes, 1024 TiB: anything larger is a typo


def _read_size(value: Any) -> int:
    found = re.fullmatch(r"\s*([1-9][0-9]{0,8})\s*([MGT])i?B?\s*", str(value), re.IGNORECASE)
    if not found:
        plain = re.fullmatch("[1-9][0-9]{0,8}", str(value))
        units = [unit for unit, most in (("MiB", 1 << 30), ("GiB", 1 << 20)) if plain and int(plain[0]) <= most]
        raise ValueError(f"add a unit: {' or '.join(f'{value}{unit}' for unit in units)}" if units else "")
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
    if type(value) is int:
        if 1 <= value < 2**31:
            return value
        raise ValueError
    if isinstance(value, str) and re.fullmatch("[1-9][0-9]{0,8}", value):
        raise ValueError("leave the quotes out")
    return quantity(_read_size(value))


def quantity(size: int) -> str:
    """Write bytes (whole MiB) as a Kubernetes quantity: 200Gi, 512Mi."""
    shifts = {"Ti": 40, "Gi": 30, "Mi": 20}
    unit = next(unit for unit, shift in shifts.items() if size % (1 << shift) == 0)
    return f"{size >> shifts[unit]}{unit}"


_AMOUNT_SCHEMA = {"anyOf": [{"type": "integer", "minimum": 1, "exclusiveMaximum": 2**31}, _SIZE_SCHEMA]}
Amount = Annotated[int | str, Value("a whole number of devices, or a size such as 4GiB", _read_amount, _AMOUNT_SCHEMA)]
"""A number, or bytes as a Kubernetes quantity."""

_DURATION = r"(?=.*[1-9])(?:([0-9]{1,5})d)?(?:([0-9]{1,5})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,8})s)?"


def _duration_hint(value: Any) -> str:
    if type(value) is int and value > 0:
        units = [f"{value}{unit}" for unit in "smh" if re.fullmatch(_DURATION, f"{value}{unit}")]
        return f"add a unit: {' or '.join(units)}" if units else ""
    found = re.fullmatch(r"(?:([0-9]{1,3})-)?([0-9]{1,3}):([0-9]{2}):([0-9]{2})", str(value))  # as Slurm writes it
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


_DURATION_SCHEMA = {"type": "string", "pattern": f"^{_DURATION}$"}
Duration = Annotated[int, Value("a time above 0 such as 90s, 30m, 2h or 1d12h", _read_duration, _DURATION_SCHEMA)]
"""Seconds."""
