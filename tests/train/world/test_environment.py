"""World.detect: who this process is, for each launcher's environment; what is said about half an environment."""

import socket
from dataclasses import replace

import pytest

from tests.cli import start_ranks
from train.errors import UserError
from train.world.environment import World
from train.world.network import interface_towards


def _environ(text: str) -> dict[str, str]:
    return dict(word.split("=") for word in text.split())


TORCHRUN = _environ("""
    RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 MASTER_ADDR=head MASTER_PORT=29500
    TORCHELASTIC_RUN_ID=none TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RESTART_COUNT=2
""")
# srun with 7 tasks on 4 nodes, two GPUs a node but for the last.
SLURM = _environ("""
    SLURM_JOB_ID=4711 SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_NODEID=2 SLURM_NTASKS=7
    SLURM_STEP_NUM_TASKS=7 SLURM_NNODES=4 SLURM_STEP_NUM_NODES=4 SLURM_GTIDS=4,5 MASTER_ADDR=n1 MASTER_PORT=29501
""")
# What the PyTorchJob controller gives the third pod of four; it means nodes.
PYTORCHJOB = _environ("""
    RANK=2 WORLD_SIZE=4 MASTER_ADDR=job-master-0 MASTER_PORT=23456 PET_NPROC_PER_NODE=1 PET_NNODES=4 PET_NODE_RANK=2
""")
# A Slurm batch script: task 0 of the batch step, which is no step of srun.
BATCH_SCRIPT = _environ("""
    SLURM_JOB_ID=4711 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=8 SLURM_NNODES=2
    SLURM_JOB_NODELIST=n[1-2]
""")


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


OF_TORCHRUN = World(5, 8, 1, 4, 1, "head", 29500, "torchrun", store_is_served=True, attempt=2, store_attempt=2)
OF_SLURM = World(5, 7, 1, 2, 2, "n1", 29501, "slurm")
WORLDS = {
    "torchrun": (TORCHRUN, OF_TORCHRUN),
    "torchrun inside a Slurm step": (SLURM | TORCHRUN, OF_TORCHRUN),
    "torchrun inside a PyTorchJob pod": (PYTORCHJOB | TORCHRUN, OF_TORCHRUN),
    "torchrun that serves no store": (
        TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "False"},
        replace(OF_TORCHRUN, store_is_served=False, store_attempt=0),
    ),
    "set by hand": (
        {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
        World(1, 2, 1, 2, 0, "127.0.0.1", 29500, "environment"),
    ),
    "Slurm task per GPU": (SLURM, OF_SLURM),
    "Slurm task on the smaller last node": (
        SLURM | {"SLURM_PROCID": "6", "SLURM_LOCALID": "0", "SLURM_NODEID": "3", "SLURM_GTIDS": "6"},
        replace(OF_SLURM, rank=6, local_rank=0, local_world_size=1, node_rank=3),
    ),
    "Slurm step that is smaller than its allocation": (SLURM | {"SLURM_NTASKS": "64"}, OF_SLURM),
    "Slurm step that has only the allocation's number": (without(SLURM, "SLURM_STEP_NUM_TASKS"), OF_SLURM),
    "Slurm batch script": (BATCH_SCRIPT, World()),
    "nothing": ({}, World()),
    "nothing of ours": ({"PATH": "/bin", "HOME": "/", "SLURM_JOB_ID": "1"}, World()),
}


@pytest.mark.parametrize(("environ", "world"), WORLDS.values(), ids=WORLDS)
def test_world_is_read_from_the_environment_of(environ: dict[str, str], world: World) -> None:
    assert World.detect(environ) == world


def test_pytorchjob_pod_without_torchrun_is_told_to_use_it() -> None:
    with pytest.raises(UserError, match=r"must not be set without LOCAL_RANK: .*torchrun"):
        World.detect(PYTORCHJOB)


@pytest.mark.parametrize(
    ("environ", "required"),
    [
        (TORCHRUN, ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]),
        (SLURM, ["SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_ID", "SLURM_GTIDS"]),
    ],
    ids=["torchrun", "slurm"],
)
def test_partial_environment_names_what_is_missing(environ: dict[str, str], required: list[str]) -> None:
    for name in required:
        for partial in (without(environ, name), environ | {name: ""}):
            with pytest.raises(UserError) as refusal:
                World.detect(partial)
            given_names, _, missing = str(refusal.value).partition(" must not be set without ")
            assert missing.startswith(f"{name}: ")
            assert name not in given_names.split(", ")
    with pytest.raises(UserError) as refusal:
        World.detect(without(environ, *required))
    all_missing = str(refusal.value).partition(" must not be set without ")[2].partition(": ")[0]
    assert sorted(all_missing.split(", ")) == sorted(required), "all at once"


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"])
@pytest.mark.parametrize("value", ["-1", "1.0", " "])
def test_variable_that_is_no_number_is_named_with_its_value(name: str, value: str) -> None:
    with pytest.raises(UserError, match=rf'^{name}="{value}": must be a whole number'):
        World.detect(TORCHRUN | {name: value})


@pytest.mark.parametrize(
    "environ",
    [TORCHRUN | {"RANK": "8"}, SLURM | {"SLURM_PROCID": "7"}],
    ids=["torchrun", "slurm"],
)
def test_rank_beyond_the_world_is_refused_with_both_numbers(environ: dict[str, str]) -> None:
    size = int(environ.get("WORLD_SIZE", environ.get("SLURM_STEP_NUM_TASKS", "")))
    with pytest.raises(UserError, match=rf"RANK is {size} and WORLD_SIZE is {size} .* 0 to {size - 1}"):
        World.detect(environ)


def test_slurm_step_on_one_node_meets_on_the_loopback_and_on_several_asks_for_the_address() -> None:
    without_address = without(SLURM, "MASTER_ADDR")
    assert World.detect(without_address | {"SLURM_STEP_NUM_NODES": "1"}).master_addr == "127.0.0.1"
    with pytest.raises(UserError, match=r"MASTER_ADDR is not set.* export MASTER_ADDR=\$\(scontrol show hostnames "):
        World.detect(without_address)


def test_slurm_port_is_the_same_for_all_tasks_and_differs_between_jobs_and_steps() -> None:
    def port(job: int, step: int, task: int) -> int:
        environ = without(SLURM, "MASTER_PORT") | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}
        return World.detect(environ | {"SLURM_PROCID": str(task)}).master_port

    assert {port(4711, 0, task) for task in range(7)} == {port(4711, 0, 0)}
    ports = [port(job, step, 0) for job in range(4700, 4720) for step in range(3)]
    assert len(set(ports)) == len(ports)
    assert all(1024 <= number < 32768 for number in ports), "below Linux's ephemeral ports"


@pytest.fixture
def ipv6() -> str:
    """This machine's own IPv6 address."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error.strerror}")
    return "::1"


def test_interface_towards_the_loopback_of_ipv6_is_lo(ipv6: str) -> None:
    assert interface_towards(ipv6) == "lo"


def _meet_and_train(**environ: str) -> None:
    for rank in start_ranks(2, "--model=mlp", "--max-steps=2", "--device=cpu", **environ):
        stdout, stderr = rank.communicate()
        assert rank.returncode == 0, stdout + stderr


@pytest.mark.slow
def test_ranks_meet_and_train_where_the_master_has_only_an_ipv6_address(ipv6: str) -> None:
    _meet_and_train(MASTER_ADDR=ipv6)


@pytest.mark.slow
def test_ranks_meet_of_which_only_one_has_failed_before() -> None:
    """torchrun counts a restart for the node of this rank, and none for a node that joins it again."""
    _meet_and_train(TORCHELASTIC_RESTART_COUNT="{rank}")
