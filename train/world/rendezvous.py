"""Connections between the ranks, with bounded waits and clear messages.

The default group is gloo on the CPU.  It exists before any device is chosen, so a rank whose device is missing can
still tell the others.  On CUDA gradients travel in a second group, over NCCL.
"""

import json
import os
import socket
from collections.abc import Iterator
from concurrent.futures import TimeoutError
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import torch.distributed as dist

from train.config import TrainConfig, setting
from train.errors import SharedError, UserError, differences, first_line
from train.world.attempt import Attempt
from train.world.environment import World
from train.world.network import choose_interfaces, failure_of, wait_until_resolvable
from train.world.threads import in_thread

# Rank 0 answers once it listens; whatever stays silent for longer than this is another program.
_ANSWER_TIMEOUT_S = 30.0

# Kept alive on purpose.  torch 2.6 destroys a gloo group by waiting for its threads while it holds the GIL.  These
# threads may need the GIL to free the tensors of the last collective: a deadlock.  The end of the process ends them.
_groups: list[dist.ProcessGroup] = []


@contextmanager
def open_process_group(world: World, attempt: Attempt, config: TrainConfig) -> Iterator[None]:
    """Make the default group, of all ranks over gloo; free all groups at the end, unless the block raised an error."""
    timeout = timedelta(seconds=config.rendezvous_timeout_s)
    of_collectives = timedelta(seconds=config.collective_timeout_s)
    store: dist.Store = dist.HashStore()  # a single process needs no port, so no port can be taken
    if world.world_size > 1 or world.store_is_served:
        wait_until_resolvable(world.master_addr, config.rendezvous_timeout_s)
        choose_interfaces(world)
        server = connect_to_store(world, timeout)
        attempt.join(_of_attempt(server, world.store_attempt), timeout)
        store = wait_for_all_ranks(world, server, timeout)
    try:
        dist.init_process_group("gloo", None, of_collectives, world.world_size, world.rank, store)
    except RuntimeError as error:
        raise UserError(
            f"rank {world.rank} met the other ranks, but cannot connect to them ({first_line(error)}): all TCP ports "
            "must be open between the nodes, in both directions. Or a rank has ended: look at the logs"
        ) from None
    assert dist.group.WORLD is not None
    _groups.append(dist.group.WORLD)
    yield
    # Only after success.  After an error NCCL would wait here for work that never ends, and the reason would not be
    # printed.  The end of the process then frees the groups.
    dist.destroy_process_group()


def connect_to_store(world: World, timeout: timedelta) -> dist.TCPStore:
    """Return a client of the store at master_addr:master_port; rank 0 also serves it unless the launcher does."""
    address, limit_s = (world.master_addr, world.master_port), timeout.total_seconds()
    place = f"{world.master_addr}:{world.master_port} (MASTER_ADDR:MASTER_PORT)"
    serve = world.rank == 0 and not world.store_is_served
    if not serve:
        failure = failure_of(lambda: socket.create_connection(address, timeout=5).close(), limit_s, pause_s=0.1)
        if failure is not None:
            raise UserError(
                f"rank {world.rank} found no rank 0 at {place} within {limit_s:g} s: {failure.strerror or failure}. "
                "Is rank 0 running, and does a firewall let the port through? "
                f"{setting('rendezvous_timeout_s')} sets the limit"
            )
    # TCPStore's timeout does not work with a foreign server that accepts and then stays silent.
    store = partial(dist.TCPStore, *address, is_master=serve, timeout=timeout, wait_for_workers=False)
    try:
        return in_thread(store).result(min(limit_s, _ANSWER_TIMEOUT_S))
    except TimeoutError:
        reason = "no answer"
    except RuntimeError as error:
        reason = first_line(error)
    host = socket.gethostname()
    port = (
        f"rank 0 has to listen on MASTER_PORT {world.master_port} of {host}, to which MASTER_ADDR must lead, but cannot"
    )
    what = port if serve else f"something listens at {place}, but it is not rank 0 of this job"
    raise UserError(f"port in use: {what} ({reason}); set another MASTER_PORT, the same on all nodes")


def _of_attempt(store: dist.Store, attempt: int) -> dist.Store:
    return dist.PrefixStore(f"attempt-{attempt}", store)


def wait_for_all_ranks(world: World, server: dist.Store, timeout: timedelta) -> dist.Store:
    """Return the store of this attempt once all ranks are there.

    A static torchrun starts only the processes of its node again: those of other nodes would wait in the attempt before
    for this rank, which therefore ends all earlier ones.
    """
    *former, store = (_of_attempt(server, attempt) for attempt in range(world.store_attempt + 1))
    host, place = socket.gethostname(), f"{world.master_addr}:{world.master_port}"
    for ended in former:
        ended.set("ended-by", f"rank {world.rank} ({host})")
    keys = [f"arrived-{rank}" for rank in range(world.world_size)]
    for each in (*former, store):
        each.set(keys[world.rank], json.dumps([world.world_size, os.environ.get("GLOO_SOCKET_IFNAME"), host]))
    try:
        missing = _missing_after(timeout, store, keys)
        ranks = [rank for rank in range(world.world_size) if rank not in missing]
        arrived = dict(zip(ranks, map(json.loads, store.multi_get([keys[rank] for rank in ranks])), strict=True))
        ended_by = store.get("ended-by").decode() if store.check(["ended-by"]) else None
    except RuntimeError as error:
        raise UserError(
            f"rank {world.rank} lost the store at {place} while it waited for other ranks ({first_line(error)}): "
            "rank 0 or the torchrun of its node has ended, look at its log"
        ) from None
    if ended_by is not None:
        raise SharedError(
            f"{ended_by} was started again before all ranks had met, so this attempt of the job has ended. "
            "This process ends, too; restart it together with the other ranks"
        )
    if sizes := differences({rank: size for rank, (size, _, _) in arrived.items()}):
        raise UserError(f"WORLD_SIZE is {sizes}: start all nodes with the same numbers of nodes and processes")
    if missing:
        others = "; after a restart by torchrun on several nodes, set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun"
        raise UserError(
            f"{len(missing)} of {world.world_size} processes did not arrive at {place} within "
            f"{timeout.total_seconds():g} s: rank {', '.join(map(str, missing))}. Look at their logs; "
            f"{setting('rendezvous_timeout_s')} sets the limit{others if world.store_attempt else ''}"
        )
    on_loopback = [str(rank) for rank, (_, interface, _) in arrived.items() if interface == "lo"]
    if on_loopback and len({host for _, _, host in arrived.values()}) > 1:
        raise SharedError(
            f"rank {', '.join(on_loopback)} would use the loopback interface, which the other hosts cannot reach: "
            "MASTER_ADDR resolves to a loopback address there. Use a name that resolves to the same address on all "
            "nodes, or set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
        )
    return store


def _missing_after(timeout: timedelta, store: dist.Store, keys: list[str]) -> list[int]:
    try:
        store.wait(keys, timeout)
    except RuntimeError:
        return [rank for rank, key in enumerate(keys) if not store.check([key])]
    return []
