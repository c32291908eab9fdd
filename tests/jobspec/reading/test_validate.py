"""All wrong values in one run, each reported once, whatever is wrong around them; the rules come after them."""

import copy
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from jobspec import targets
from jobspec.problems import Problem, SpecError
from jobspec.reading.notation import hidden
from jobspec.reading.override import override
from jobspec.reading.validate import validate
from jobspec.reading.yaml_source import Source, parse
from jobspec.spec.job import Job
from tests.tables import spec_with

EVERY_KEY = parse((Path(__file__).parents[2] / "specs" / "ok" / "every-key.yaml").read_text(), "every-key.yaml")


def messages(spec: Source, target: str) -> list[str]:
    """The messages, without their places."""
    with pytest.raises(SpecError) as error:
        validate(spec, targets.load(target).rules)
    return [problem.message for problem in error.value.problems]


def paths(values: Any, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every key and element."""
    below = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for part, value in below:
        yield (*above, part)
        yield from paths(value, (*above, part))


@given(
    wrong=st.dictionaries(
        st.sampled_from(list(paths(EVERY_KEY.values))),
        st.sampled_from([None, True, 0, -1, 1.5, "", "A B", "x\ny", {}, [], {"zebra": 1}, ["x"], [None]]),
        min_size=1,
        max_size=5,
    ),
    target=st.sampled_from(targets.names()),
)
def test_each_wrong_value_is_reported_once_whatever_else_is_wrong(wrong: dict[Any, Any], target: str) -> None:
    values = copy.deepcopy(EVERY_KEY.values)
    for path in sorted(wrong, key=len, reverse=True):
        parent: Any = values
        for part in path[:-1]:
            parent = parent[part]
        parent[path[-1]] = copy.deepcopy(wrong[path])
    spec = Source(values, EVERY_KEY.keys, EVERY_KEY.items)
    try:
        Job.model_validate(values, strict=True)
        refused = set()
    except ValidationError as error:
        refused = {detail["loc"] for detail in error.errors() if detail["type"] != "missing"} & set(wrong)
    try:
        validate(spec, targets.load(target).rules)
        found: Counter[Any] = Counter()
    except SpecError as error:
        found = Counter(problem.place for problem in error.problems)
    for path in refused:
        places = {EVERY_KEY.items[path], EVERY_KEY.keys.get(path, EVERY_KEY.items[path])}
        assert sum(found[place] for place in places | {hidden(Problem(place, "")).place for place in places}) == 1, path


def test_rules_are_checked_once_all_values_are_right() -> None:
    wrong = parse("name: job\nnodes: 8\nprocs_per_node: 2\ntrain: {batch_size: 4, lr: fast}\n", "a.yaml")
    assert messages(wrong, "torchrun") == ['train.lr must be a number, not "fast"']
    right = override(wrong, ["train.lr=0.1"])
    assert messages(right, "torchrun") == ["train.batch_size is 4, but 16 processes (8 nodes x 2) share it"]


@pytest.mark.parametrize("setting", ["env.A=1", "env={A: 1e3}"])
def test_hint_for_a_text_of_an_option_survives_the_shell(setting: str) -> None:
    job = parse("name: job\nnodes: 1\nprocs_per_node: 1\ncommand: [mine.py]\n", "job.yaml")
    with pytest.raises(SpecError) as error:
        validate(override(job, [setting]))
    (problem,) = error.value.problems
    (word,) = shlex.split(problem.hint.removeprefix("put it in quotes: "))
    validate(override(job, [f"env.A={word}"]))


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        ("slurm: {account: 1}", 'put it in quotes: "1"'),
        ("gpu: 4090", 'put it in quotes: "4090"'),
        ("gpu: 8", ""),
        ("setup: [null]", ""),
    ],
)
def test_hint_does_not_lead_to_the_next_mistake(keys: str, hint: str) -> None:
    with pytest.raises(SpecError) as error:
        validate(parse(spec_with(f"{keys}\n"), "job.yaml"))
    (problem,) = error.value.problems
    assert problem.hint == hint
