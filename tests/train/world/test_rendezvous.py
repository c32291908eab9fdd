"""What the ranks agree on when they have met: how long a collective may take, and over which interface they talk."""

import os

import pytest
import torch
import torch.distributed as dist

from tests.ranks import run_ranks
from train.world import network
from train.world.environment import World


def _timeout_of_collectives_s(world: World) -> float:
    assert dist.group.WORLD is not None
    return float(dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout.total_seconds())


def test_a_collective_ends_after_its_own_timeout_not_that_of_the_rendezvous() -> None:
    assert run_ranks(2, _timeout_of_collectives_s, collective_timeout_s=123) == [123, 123]


@pytest.mark.parametrize(
    ("local_world_size", "given", "gloo", "nccl"),
    [
        (1, {}, "lo", "=lo"),
        (2, {}, "lo", None),
        (1, {"GLOO_SOCKET_IFNAME": "ib0,ib1"}, "ib0,ib1", "=ib0,ib1"),
        (1, {"NCCL_SOCKET_IFNAME": "eth"}, "lo", "eth"),
    ],
    ids=["two hosts", "one host", "gloo's is chosen", "NCCL's is chosen"],
)
def test_nccl_follows_gloos_interface_across_hosts(
    local_world_size: int, given: dict[str, str], gloo: str, nccl: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")  # so that what follows is undone
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    world = World(world_size=2, local_world_size=local_world_size, master_addr="127.0.0.1", master_port=1)
    network.choose_interfaces(world)
    assert os.environ.get("GLOO_SOCKET_IFNAME") == gloo
    assert os.environ.get("NCCL_SOCKET_IFNAME") == nccl
