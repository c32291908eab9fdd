"""Shared parts of all benchmarks: interleaved rounds, ratios, and a record of the kind of machine.

Times on one machine say little about another, and two runs on a busy machine little about each other.  So both
variants of a comparison take turns, each round gives one ratio, and the median of the ratios is the result.
"""

import argparse
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

RESULTS = Path(__file__).parent / "results"
LINE_WIDTH = 1000  # of the files there; nobody reads the rounds

T = TypeVar("T")


def in_turns(variants: Mapping[str, Callable[[int], T]], rounds: int) -> dict[str, list[T]]:
    """Call all variants in round 1, then all in round 2, …; return what each variant returned, by round.

    A variant is given the number of the round, from 1.
    """
    outcomes: dict[str, list[T]] = {name: [] for name in variants}
    for number in range(1, rounds + 1):
        for name, variant in variants.items():
            outcomes[name].append(variant(number))
    return outcomes


def seconds_per_step(step: Callable[[], object], meet: Callable[[], object], steps: int) -> float:
    """Return the mean over `steps` steps, from when all ranks begin until the last is done; `meet` waits for all ranks.

    One step before them is not counted: it brings this variant's data back into the caches.
    """
    step()
    meet()
    started = time.perf_counter()
    for _ in range(steps):
        step()
    meet()
    return (time.perf_counter() - started) / steps


def ratios(ours: Sequence[float], peer: Sequence[float]) -> list[float]:
    """Return ours / peer for each round."""
    return [mine / theirs for mine, theirs in zip(ours, peer, strict=True)]


def median_ratio(ours: Sequence[float], peer: Sequence[float]) -> float:
    """Return the median over the rounds of ours / peer."""
    return statistics.median(ratios(ours, peer))


def quartiles(values: Sequence[float]) -> list[float]:
    """Return the first and the third quartile."""
    first, _, third = statistics.quantiles([*values, *values] if len(values) == 1 else values, n=4, method="inclusive")
    return [first, third]


def machine() -> dict[str, Any]:
    """Return the kind of machine and software, without a name or a path that could identify it."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.system(),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in ("torch", "torchvision")},
    }


def write_result(folder: Path, name: str, result: Mapping[str, Any]) -> None:
    """Write `result` as folder/name.json; floats get four significant digits, because more is noise.

    NaN and infinity become words, because JSON cannot hold them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # At once: a process that is killed before leaves the old file.
    partial = folder / f"{name}.json.partial"
    partial.write_text(f"{_text(_rounded(result))}\n")
    partial.replace(folder / f"{name}.json")


def make_parser(name: str, doc: str, rounds: int, a_round_is: str) -> argparse.ArgumentParser:
    """Return the parser of a benchmark, with the flags that all have."""
    made = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=doc.splitlines()[0])
    made.add_argument("--rounds", type=int, default=rounds, help=a_round_is)
    made.add_argument("--results", type=Path, default=RESULTS, help=f"folder for {name}*.json")
    return made


def _version(package: str) -> str | None:
    """Return the version of a package; None if it is not installed, which is no reason to lose a result."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _text(value: Any, depth: int = 0) -> str:
    """Return JSON in which a line holds as much as fits, and all plain values of a list or mapping."""
    line = json.dumps(value, allow_nan=False)
    parts = list(value.values()) if isinstance(value, dict) else value
    if len(line) <= LINE_WIDTH or not any(isinstance(part, dict | list) for part in parts):
        return line
    names = [f"{json.dumps(name)}: " for name in value] if isinstance(value, dict) else [""] * len(parts)
    lines = [f"{' ' * (depth + 1)}{name}{_text(part, depth + 1)}" for name, part in zip(names, parts, strict=True)]
    return "\n".join([line[0], ",\n".join(lines), f"{' ' * depth}{line[-1]}"])


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


def _cpu_model() -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return names[0].split(":", 1)[1].strip() if names else platform.machine()
