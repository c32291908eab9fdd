"""What is too long for one argument or variable is refused where it stands; the kernel says what is too long."""

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from jobspec import filters, targets
from jobspec.artifact import plan_of, text_of
from jobspec.problems import SpecError
from jobspec.reading import yaml_source

LONGEST = 131071  # bytes
BASE = {"name": "job", "nodes": 1, "procs_per_node": 1, "device": "cpu", "image": "train:1"}

# What fits, as a function of the bytes that are allowed, by the place of the value.
VALUES: dict[str, Callable[[int], dict[str, Any]]] = {
    "command.1": lambda most: {"command": ["mine.py", "x" * most]},
    "command.1 with $": lambda most: {"command": ["mine.py", "x" + "$" * ((most - 1) // 2) + "x" * ((most - 1) % 2)]},
    "command.1 in two bytes each": lambda most: {"command": ["mine.py", "é" * (most // 2) + "x" * (most % 2)]},
    "env.NOTE": lambda most: {"command": ["mine.py"], "env": {"NOTE": "x" * (most - len("NOTE="))}},
    "train.run_dir": lambda most: {"train": {"run_dir": ("x/" * most)[: most - len("--run-dir=")]}},
}


@pytest.mark.parametrize("most", [LONGEST, LONGEST + 1])
def test_kernel_takes_no_more(most: int) -> None:
    for words, env in (["/bin/true", "x" * most], {}), (["/bin/true"], {"NOTE": "x" * (most - len("NOTE="))}):
        if most <= LONGEST:
            subprocess.run(words, env=env, check=True)
        else:
            with pytest.raises(OSError, match="Argument list too long"):
                subprocess.run(words, env=env, check=True)


@pytest.mark.parametrize("target", targets.names())
@pytest.mark.parametrize("place", VALUES)
def test_longer_values_are_refused_on_every_target(place: str, target: str) -> None:
    def parsed(most: int) -> yaml_source.Source:
        return yaml_source.parse(filters.yaml({**BASE, **VALUES[place](most)}), "job.yaml")

    module = targets.load(target)
    if target == "slurm" and "command" in VALUES[place](0):
        # There the program and its variables reach the tasks as one variable.
        with pytest.raises(SpecError, match="shell text; at most 122880 are allowed"):
            plan_of(parsed(122_880), module)
        assert text_of(plan_of(parsed(122_000), module), target, "command", "file")
        return
    assert text_of(plan_of(parsed(LONGEST), module), target, "command", "file")
    with pytest.raises(SpecError) as error:
        plan_of(parsed(LONGEST + 1), module)
    (problem,) = error.value.problems
    assert problem.message == f"{place.split()[0]} takes 131072 bytes; Linux allows 131071 per argument"
    assert problem.hint == "put it in a file that the processes read"
