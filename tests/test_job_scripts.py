"""The scripts under jobs/scripts, which people copy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jobs.scripts.array_task import flags_of_task
from jobspec import targets
from jobspec.artifact import load
from train.flags import from_argv

JOBS = Path(__file__).parents[1] / "jobs"


def flags_of_the_job() -> list[str]:
    """What jobs/array.yaml gives to its script."""
    plan = load(targets.load("slurm"), str(JOBS / "array.yaml"))
    assert plan.program[:2] == ("-m", "jobs.scripts.array_task")
    return list(plan.program[2:])


def test_every_task_of_the_array_trains_with_its_own_rate_into_its_own_folder() -> None:
    configs = [from_argv(flags_of_task(task, flags_of_the_job())) for task in range(3)]
    assert [config.lr for config in configs] == [0.003, 0.001, 0.0003]
    assert [config.run_dir for config in configs] == ["runs/array/0", "runs/array/1", "runs/array/2"]


def test_task_beyond_the_rates_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        flags_of_task(3, flags_of_the_job())
    assert "task 3 of the array, but --lr has only 3 values: 0 to 2" in capsys.readouterr().err


def test_no_script_hides_a_module_of_python() -> None:
    """The folder of a script that torchrun starts is the first place where its imports are looked for."""
    assert not {file.stem for file in (JOBS / "scripts").glob("*.py")} & sys.stdlib_module_names
