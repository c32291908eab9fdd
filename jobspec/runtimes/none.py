"""No container: the processes run in the environment of the shell that called sbatch."""

from __future__ import annotations

from collections.abc import Sequence

from jobspec.plan import Plan

PROGRAM = None
RUN = None
STOP = None


def srun_flags(plan: Plan, passed: Sequence[str]) -> list[str]:
    return []


def before(plan: Plan, passed: Sequence[str]) -> list[str]:
    return []


def words(plan: Plan, passed: Sequence[str]) -> list[str]:
    return []


def image_problem(image: str) -> str | None:
    return None
