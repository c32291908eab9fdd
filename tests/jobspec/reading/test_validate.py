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
from jobspec.spec.rules import rules_in
from tests.tables import spec_with

EVERY_KEY = parse((Path(__file__).parents[2] / "specs" / "ok" / "every-key.yaml").read_text(), "every-key.yaml")


def messages(spec: Source, target: str) -> list[str]:
    """The messages, without their places."""
    with pytest.raises(SpecError) as error:
        validate(spec, rules_in(targets.load(target)))
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
        validate(spec, rules_in(targets.load(target)))
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
    assert messages(right, "torchrun") == [
        "train.batch_size is 4, less than the 16 processes (nodes 8 x procs_per_node 2)"
    ]


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("env.A=1", """put it in quotes: --set 'env.A="1"'"""),
        ("env={A: 1e3}", """put it in quotes: --set 'env.A="1e3"'"""),
        ("env.A=", """for an empty text write --set 'env.A=""'"""),
    ],
)
def test_hint_for_a_text_of_an_option_survives_the_shell(setting: str, hint: str) -> None:
    job = parse("name: job\nnodes: 1\nprocs_per_node: 1\ncommand: [mine.py]\n", "job.yaml")
    with pytest.raises(SpecError) as error:
        validate(override(job, [setting]))
    assert [problem.hint for problem in error.value.problems] == [hint]
    (word,) = shlex.split(hint.partition("--set ")[2])
    validate(override(job, [word]))


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        ("slurm: {ntasks_per_gpu: 1}", "leave it out: it is set from procs_per_node and slurm.launcher"),
        ("slurm: {open_mode: append}", "leave it out: it is set from preemption"),
        ("slurm: {test_only: true}", "remove it here, and write it on the command line of sbatch"),
        ("slurm: {overcommit: true}", "slurm: {srun_options: {overcommit: true}}"),
        ("slurm: {wrap: hostname}", "write command instead"),
        ("kubernetes: {initContainers: []}", "kubernetes: {pod: {initContainers: …}}"),
        ("kubernetes: {securityContext: {}}", "kubernetes: {pod: {securityContext: …}}"),
        ("kubernetes: {priority: high}", 'did you mean "priority_class"?'),
        ("preemption: {signal: USR1}", "allowed: grace, max_requeues, progress"),
        ("train: {dataset: true}", ""),
        ("train: {profile: 25}", ""),
        ("train: {data_root: }", ""),
        ("train: {run_dir: 5}", 'put it in quotes: "5"'),
        ("slurm: {account: +1}", ""),
        ("slurm: {account: 1}", 'put it in quotes: "1"'),
        ("kubernetes: {service_account: true}", 'put it in quotes: "true"'),
        ("kubernetes: {node_selector: {a: .5}}", ""),
        ("kubernetes: {queue: 1E10}", 'did you mean "1e10"?'),
        ("setup: [null]", ""),
        ('setup: ["a\\tb"]', ""),
        ("kubernetes: {tolerations: a}", "a list of mappings with the keys key, operator, value, effect, seconds"),
        ("command: bash run.sh 1", 'write command: [bash, run.sh, "1"] and no_python: true'),
        ("no_python: true\ncommand: bash run.sh", "write command: [bash, run.sh]"),
        ("no_python: true\ncommand: python run.py", "write command: [python, run.py]"),
        ("command: python -c 1", ""),
        ("command: python it's.py", ""),
        ('command: "a.py \\u0001"', ""),
        ('command: ""', ""),
        ("command: cd /x && python a.py", ""),
        ("command: A=1 python a.py", ""),
        ("command: |\n  python a.py\n  python b.py", ""),
        ("command: nvidia-smi -L", ""),
        ("command: python -m torch.distributed.run --nnodes 2 a.py 1", 'write command: [a.py, "1"]'),
        ('command: [bash run.sh, "5"]', 'write each word as an element: ["bash", "run.sh"], and no_python: true'),
        ("gpu: 4090", 'put it in quotes: "4090"'),
        ("gpu: 8", ""),
        ("slurm: {export: ALL}", "slurm: {options: {export: …}}"),
        ("secrets: A,B", "write secrets: […]"),
        ('resources: {rdma: "5"}', ""),
        ('resources: {cpus: "null"}', ""),
        ('max_restarts: "true"', ""),
        ('max_restarts: "99999"', ""),
        ('train: {lr: "0.5"}', "leave the quotes out"),
        ('train: {lr: "1e-3"}', "leave the quotes out; yaml.safe_load makes text of 1e-3, not of 1.0e-3"),
        ("time_limit: 0", ""),
        ("time_limit: 100000", "add a unit: 100000s or 100000m"),
        ("time_limit: -5", ""),
        ("resources: {memory: 2000TB}", "no node has more than 1024TiB"),
        ('no_python: "true"', "leave the quotes out"),
        *((f"nodes: '{nodes}'", "") for nodes in ("4:2", "0:4", "2-99999", f"1:{'9' * 5000}")),
        # As other tools write it.
        ("gpu: h100:8", "write gpu: h100 and procs_per_node: 8"),
        ('nodes: "2"', "leave the quotes out"),
        (
            "procs_per_node: auto",
            "write the number of processes, such as 8, because the artifact must not depend on the machine",
        ),
        ("env: [A=1, {B: 2}, hf_abc]", "write env: {A: …, B: …}"),
        ("mounts: [/data:/in:ro]", "write {source: /data, path: /in, read_only: true}"),
        *(
            (f"{spec_with('')}{line}", "this line contains U+00A0, a no-break space; write a plain space")
            for line in ("time_limit:\u00a02h", "\u00a0time_limit: 2h")
        ),
    ],
)
def test_hint_does_not_lead_to_the_next_mistake(keys: str, hint: str) -> None:
    with pytest.raises(SpecError) as error:
        validate(parse(spec_with(f"{keys}\n"), "job.yaml"))
    (problem,) = error.value.problems
    assert problem.hint == hint
    assert (problem.place.name, problem.place.line <= len(keys.splitlines())) == ("job.yaml", True)
