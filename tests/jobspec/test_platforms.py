"""Who is where, on all seven targets: as their platforms would run them, as `environment` and `explain` say."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from jobspec import filters, targets
from jobspec.artifact import load
from jobspec.environment import NODE_0
from tests.cli import free_port
from tests.command_line import command_line
from tests.hostile import ARGUMENTS
from tests.platforms import NODES, Seen, resolved, run

# How each target runs the job of two nodes; Slurm can do without torchrun, too.
TWO_NODES = [*((target, ()) for target in targets.names()), ("slurm", ("slurm.launcher=srun",))]
FAST = [("slurm", ()), ("trainjob", ())]  # in `make test`
ONE_NODE = [
    ("compose", ("nodes=1",)),
    ("jobset", ("nodes=1",)),
    ("pytorchjob", ("nodes=1",)),  # a Master without Workers
    ("slurm", ("nodes=1",)),
    ("slurm", ("slurm.launcher=srun", "nodes=1")),
    ("torchrun", ("nodes=1",)),
]
ELASTIC = [
    (target, ("nodes={min: 1, max: 2}",)) for target in ("compose", "indexedjob", "pytorchjob", "slurm", "torchrun")
]

Run = Callable[[str, tuple[str, ...]], dict[int, Seen]]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("spec") / "job.yaml"
    file.write_text(
        "name: my-job\nnodes: 2\nprocs_per_node: 2\nimage: train:1\nsecrets: [TOKEN]\n"
        f"command: {filters.yaml(['mine.py', *ARGUMENTS])}\n"
        f"env: {{GLOO_SOCKET_IFNAME: lo, NOTE: '$(OUT) $HOME $$ $é'}}\nrendezvous: {{port: {free_port()}}}\n"
        "kubernetes: {pod: {containers: [{name: node, env: [{name: C, value: $(NOTE)$$}, {name: D, value: $$(A)}]}]}}\n"
    )
    return file


@pytest.fixture(scope="module")
def ran(spec: Path, programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What each process of the job found, by rank; a job runs once, however many tests ask."""
    return cache(lambda target, settings: run(target, spec, tmp_path_factory.mktemp(target), programs, settings))


@pytest.mark.parametrize(
    ("target", "settings"),
    [
        pytest.param(*case, marks=[] if case in FAST else [pytest.mark.slow])
        for case in (*TWO_NODES, *ONE_NODE, *ELASTIC)
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value) or "nodes=2",
)
def test_every_process_sees_what_settings_say_and_reaches_the_others(
    target: str, settings: tuple[str, ...], spec: Path, ran: Run
) -> None:
    module = targets.load(target)
    plan = load(module, str(spec), settings)
    # c10d numbers pods by their addresses, but they meet at a name.
    pod = "my-job-{}.my-job" if target == "indexedjob" else "my-job-worker-{}"
    names = [module.node_name(plan, node) or pod.format(node) for node in range(plan.job.nodes.max)]
    found = ran(target, settings)
    assert sorted(found) == [rank.rank for rank in plan.ranks()]
    for rank in plan.ranks():
        seen = found[rank.rank]
        assert (seen.world_size, seen.total) == (plan.job.world_size, 2**plan.job.world_size - 1)
        assert seen.arguments == ARGUMENTS
        assert (seen.env["NOTE"], seen.env["TOKEN"]) == ("$(OUT) $HOME $$ $é", "s3cret $(NOTE)")
        # A later setting of a name replaces an earlier one.
        told = {setting.name: resolved(setting.value, names) for setting in module.environment(plan, rank)}
        assert set(told) <= set(seen.env)
        known = {name: value for name, value in told.items() if "<" not in value}
        assert known == {name: seen.env[name] for name in known}
        assert {name for name in seen.env if name.startswith("PET_")} <= set(told)


def test_all_targets_agree_with_each_other_and_with_explain(spec: Path, ran: Run) -> None:
    """For each rank: node, LOCAL_RANK, device, and the node that MASTER_ADDR leads to."""
    expected = {0: (0, 0, "cuda:0", 0), 1: (0, 1, "cuda:1", 0), 2: (1, 0, "cuda:0", 0), 3: (1, 1, "cuda:1", 0)}
    for target, settings in TWO_NODES:
        found = ran(target, settings)
        assert {rank: where(seen) for rank, seen in found.items()} == expected, target
        assert all(seen.gpus in (None, 2) for seen in found.values())
        assert explained(target, settings, spec) == expected, target


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_a_program_that_python_does_not_run_gets_every_argument(
    launcher: str, spec: Path, programs: Path, tmp_path: Path
) -> None:
    words = ["bash", "-c", 'exec python3 mine.py "$@"', "$0 ${local_rank} $$", *ARGUMENTS]
    job = spec.read_text().replace(filters.yaml(["mine.py", *ARGUMENTS]), filters.yaml(words))
    file = tmp_path / "job.yaml"
    file.write_text(job + f"no_python: true\nslurm: {{launcher: {launcher}}}\n")
    (tmp_path / "run").mkdir()
    found = run("slurm", file, tmp_path / "run", programs)
    assert [found[rank].arguments for rank in range(4)] == [ARGUMENTS] * 4
    assert [where(found[rank])[:2] for rank in range(4)] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def where(seen: Seen) -> tuple[int, int, str, int]:
    local_rank = int(seen.env["LOCAL_RANK"])
    return seen.node, local_rank, f"cuda:{local_rank}", NODES.index(seen.env["MASTER_ADDR"])


def explained(target: str, settings: tuple[str, ...], spec: Path) -> dict[int, tuple[int, int, str, int]]:
    """The same from `explain --json`."""
    words = ["explain", str(spec), "--target", target, "--json"]
    words += [word for setting in settings for word in ("--set", setting)]
    told = json.loads(command_line(*words).stdout)
    names = told["node_names"] or [NODE_0]  # which only the running job knows
    found = {}
    for rank in told["ranks"]:
        seen = {variable["name"]: variable["value"] for variable in [*told["environment"], *rank["environment"]]}
        assert (seen["RANK"], seen["LOCAL_RANK"]) == (str(rank["rank"]), str(rank["local_rank"]))
        node_of_master = names.index(seen["MASTER_ADDR"])
        found[rank["rank"]] = rank["node_rank"], rank["local_rank"], rank["device"], node_of_master
    return found
