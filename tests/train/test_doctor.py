"""python -m train.doctor on real processes: a healthy pair, and each fault named in words."""

import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist

from tests.cli import ROOT, environment, free_port, start_ranks
from tests.ranks import run_ranks, shorten_timeout
from train import doctor, examination
from train.errors import UserError
from train.examination import Card, mistakes
from train.flags import from_argv
from train.world.environment import World

_CARD = Card(0, "n0", 1, "cuda:0", "GPU-0", "eth0", "torch 2.15", None)
_CARDS = [replace(_CARD, rank=rank, gpu=f"GPU-{rank}") for rank in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "address"),
    [
        ([str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node=2"], "localhost"),
        ([sys.executable], "127.0.0.1"),
    ],
)
def test_a_healthy_pair_is_found_healthy(launcher: list[str], address: str) -> None:
    procs = ["--procs=2"] * (len(launcher) == 1)
    command = [*launcher, "-m", "train.doctor", *procs, "--device=cpu", "--model=mlp"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    met, head, *rows, times, last = done.stdout.splitlines()
    assert met.startswith(f"2 processes met at {address}:")
    assert head.split() == ["rank", "host", "pid", "device", "interface", "versions"]
    assert [row.split()[0] for row in rows] == ["0", "1"]
    assert all(socket.gethostname() in row and " cpu " in row for row in rows)
    assert times.startswith("all-reduce of 16 MiB over gloo, milliseconds by rank: ")
    assert len([float(word) for word in times.rpartition(": ")[2].split()]) == 2
    assert last == "no problem found"


@pytest.mark.slow
def test_each_rank_says_what_it_misses() -> None:
    """One has a wrong MASTER_ADDR, one another WORLD_SIZE, and one does not come."""
    places = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_PORT": str(free_port())}
    flags = ("--device=cpu", "--rendezvous-timeout-s=60")
    of_ranks: list[dict[str, str]] = [{}, {"MASTER_ADDR": "no-such-host.invalid"}, {"WORLD_SIZE": "3"}]
    ranks = [
        start_ranks(1, *flags, program=("-m", "train.doctor"), **places | {"RANK": str(rank)} | other)[0]
        for rank, other in enumerate(of_ranks)
    ]
    said = [rank.communicate()[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1, 1]
    assert 'PROBLEM: MASTER_ADDR is "no-such-host.invalid", which does not resolve on ' in said[1]
    assert "PROBLEM: WORLD_SIZE is 4 on rank 0; 3 on rank 2: start all nodes with the same numbers" in said[0]
    assert not any("Traceback" in text for text in said), said


def _without_rank_1(world: World) -> str:
    store = dist.distributed_c10d._get_default_store()
    config = from_argv(["--device=cpu"])
    times = examination._times

    def in_time(*arguments: Any) -> list[float] | None:
        if world.rank == 1:
            return store.wait(["over"])
        shorten_timeout(dist.group.WORLD, 1)  # the meeting before it may take as long as it likes
        return times(*arguments)

    with mock.patch.object(examination, "_times", in_time):
        if world.rank == 1:
            examination.examine(world, config)
            return ""
        with pytest.raises(UserError) as refusal:
            examination.examine(world, config)
    store.set("over", "")
    return str(refusal.value)


def test_a_rank_that_hangs_after_the_meeting_is_named() -> None:
    assert "no report within 5 s from rank 1 " in run_ranks(2, _without_rank_1)[0]


def test_check_exact_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--check-exact"]) == 1
    assert "--check-exact: train.doctor trains nothing" in capsys.readouterr().err


def test_ranks_that_fit_together_have_no_mistakes() -> None:
    assert mistakes(_CARDS) == []


def test_all_mistakes_are_named_at_once() -> None:
    sick = [
        _CARDS[0],
        replace(_CARDS[1], gpu="GPU-0"),
        replace(_CARDS[2], host="n1", device="none", mistake="rank 2: torch sees 1 CUDA devices on n1"),
        replace(_CARDS[3], versions="torch 2.6"),
    ]
    device, versions, gpu = mistakes(sick)
    assert versions.startswith("versions or files of train/ differ: torch 2.15 on rank 0, 1, 2; torch 2.6 on rank 3.")
    assert device == "rank 2: torch sees 1 CUDA devices on n1"
    assert gpu.startswith("ranks 0, 1 all use GPU GPU-0 of n0")


def test_a_node_without_a_gpu_among_others_with_one_is_named() -> None:
    (found,) = mistakes([*_CARDS[:3], replace(_CARDS[3], device="cpu", gpu=None)])
    assert "the ranks compute on different devices: cuda on rank 0, 1, 2; cpu on rank 3. " in found
