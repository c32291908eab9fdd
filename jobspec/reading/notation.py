"""Keys and values of a spec as messages write them."""

import json
from typing import Any

from jobspec.problems import Path
from jobspec.reading.hiding import is_secret, visible_name


def dotted(path: Path) -> str:
    """Return a path as people write it: ("mounts", 0, "path") is `mounts[0].path`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in path]
    return "".join(parts).removeprefix(".")


def shown(value: Any, path: Path = ()) -> str:
    """Return a value for a message: short, in YAML's notation.  `path` is where it stands, if that may be a secret."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if is_secret(path) and value is not None and visible_name(str(value)) != value:
        return f'"{visible_name(str(value))}…"'
    text = json.dumps(value, ensure_ascii=False) if value is not None else "nothing"
    return text if len(text) <= 60 else f"{text[:57]}..."
