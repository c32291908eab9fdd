"""A process that was started for an attempt which has ended meanwhile ends, too, and waits for nobody."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
import torch.distributed as dist

from train.errors import SharedError, UserError
from train.world.attempt import Attempt
from train.world.environment import World
from train.world.rendezvous import wait_for_all_ranks

_TIMEOUT = timedelta(seconds=60)
_HOST = "127.0.0.1"


def serve(port: int = 0) -> dist.TCPStore:
    """The store of an attempt, which closes with its last reference."""
    return dist.TCPStore(_HOST, port, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)


def connect(port: int) -> dist.TCPStore:
    return dist.TCPStore(_HOST, port, is_master=False, wait_for_workers=False, timeout=_TIMEOUT)


def world(rank: int, port: int) -> World:
    """A rank below torchrun, whose store listens at the port."""
    alone = World.detect({})
    return replace(alone, rank=rank, world_size=2, master_addr=_HOST, master_port=port, store_is_served=True)


def test_rank_that_comes_back_waits_for_the_end_of_the_attempt_and_ends_with_it() -> None:
    server = serve()
    port, client = server.port, connect(server.port)
    Attempt(world(1, port)).join(client, _TIMEOUT)
    again = Attempt(world(1, port))
    said: list[str] = []

    def come_back() -> None:
        try:
            again.join(client, _TIMEOUT)
        except UserError as error:
            said.append(str(error))

    returning = threading.Thread(target=come_back)
    returning.start()
    while server.add("starts-of-1", 0) < 2:
        assert returning.is_alive()
    assert not said
    del server
    returning.join(_TIMEOUT.total_seconds() / 2)
    assert "already had this rank" in said[0] and "together with the other ranks" in said[0]


def test_process_whose_store_was_replaced_while_it_started_ends() -> None:
    server = serve()
    port = server.port
    attempt = Attempt(world(0, port))
    del server
    successor = serve(port)
    with pytest.raises(UserError, match="was closed, so this attempt of the job has ended"):
        attempt.join(connect(successor.port), _TIMEOUT)


def test_process_that_finds_no_store_of_its_launcher_ends_at_once() -> None:
    server = serve()
    port = server.port
    del server
    with pytest.raises(UserError, match=f"the store at {_HOST}:{port} .* is gone"):
        Attempt(world(0, port))


def test_store_that_no_launcher_serves_is_not_looked_for() -> None:
    """Rank 0 has yet to begin it."""
    server = serve()
    port = server.port
    del server
    Attempt(replace(world(1, port), store_is_served=False))


def test_rank_ends_that_waits_for_one_which_was_started_again() -> None:
    """A static torchrun says nothing to other nodes: each rank would wait in an attempt that the other has left."""
    server = serve()
    with ThreadPoolExecutor() as pool:
        first, again = world(0, server.port), replace(world(1, server.port), store_attempt=1)
        waits = pool.submit(wait_for_all_ranks, first, connect(server.port), _TIMEOUT)
        meets = pool.submit(wait_for_all_ranks, again, connect(server.port), _TIMEOUT)
        with pytest.raises(SharedError, match=r"rank 1 \(.*was started again before all ranks had met"):
            waits.result(_TIMEOUT.total_seconds() / 2)
        wait_for_all_ranks(replace(first, store_attempt=1), connect(server.port), _TIMEOUT)
        meets.result(_TIMEOUT.total_seconds() / 2)
