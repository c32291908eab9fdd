"""Keys and values of a spec as messages write them."""

from __future__ import annotations

import json
from typing import Any

from jobspec.problems import Path


def dotted(path: Path) -> str:
    """Return a path as people write it: ("mounts", 0, "path") is `mounts[0].path`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in path]
    return "".join(parts).removeprefix(".")


def shown(value: Any) -> str:
    """Return a value for a message: short, in YAML's notation."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = json.dumps(value, ensure_ascii=False) if value is not None else "nothing"
    return text if len(text) <= 60 else f"{text[:57]}..."
