"""No container: the processes run in the environment of the shell that called sbatch."""

from __future__ import annotations

from collections.abc import Sequence

from jobspec.plan import Plan


def srun_flags(plan: Plan, passed: Sequence[str]) -> list[str]:
    return []


def words(plan: Plan, passed: Sequence[str]) -> list[str]:
    return []


def start(plan: Plan, passed: Sequence[str]) -> list[str]:
    return ['exec "$@"']


def image_problem(image: str) -> str | None:
    return None
