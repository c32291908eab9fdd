"""A batch script for Slurm: one task a node with torchrun as the agent, or one task a process without it."""

from __future__ import annotations

from typing import Any

from jobspec import runtimes
from jobspec.plan import PORTS, Plan
from jobspec.rules import rules_in
from jobspec.slurm import options, rules, task
from jobspec.slurm.settings import settings

__all__ = ["NOT_USED", "RULES", "settings", "variables"]

NOT_USED: dict[str, str] = {}
RULES = tuple(rules_in(rules))


def variables(plan: Plan) -> dict[str, Any]:
    job = plan.job
    runtime = runtimes.load(job.slurm.runtime)
    passed = task.passed(plan)
    words = runtime.words(plan, passed), task.environment(plan), task.program(plan)
    return {
        "directives": options.directives(plan),
        "srun_flags": [*options.srun_flags(plan), *runtime.srun_flags(plan, passed)],
        "preflight": job.slurm.preflight and options.has_checks(job),
        "task": [*task.lines(plan), *runtime.start(plan, passed)],
        "words": [part for part in words if part],
        "own_log": "output" not in job.slurm.options,
        "ports": PORTS,
        "shm_mib": (job.resources.shm or 0) >> 20,
        # Later than torchrun, which kills its processes itself, and before Slurm's own end.
        "give_up": max(1, job.preemption.grace * 7 // 8) if job.preemption else 0,
    }
