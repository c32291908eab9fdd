"""Connections between hosts, tried one by one: behind a firewall, collectives would wait without a word."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch.distributed as dist

from train.diagnosis.card import Card
from train.diagnosis.meeting import wait_until_read
from train.world.environment import ipv4_of

_TRIES, _TRY_S = 3, 10.0


def try_hosts(own: Card, cards: Sequence[Card], store: dist.Store) -> str:
    """Let a rank of each host connect to one of each other host, over the interfaces of gloo.  All ranks call it.

    Returns, on all ranks, a line for each two hosts between which no connection came about.
    """
    speakers = {card.host: card for card in reversed(cards)}  # the first rank of each host
    if len(speakers) == 1:
        return ""
    limit = timedelta(seconds=2 * _TRIES * _TRY_S)
    address = _address(own)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server(("", 0), family=family, backlog=len(speakers)) as door:
        if speakers[own.host] == own:
            store.set(f"door-{own.rank}", json.dumps((address, door.getsockname()[1])))
            peers = [card for card in speakers.values() if card != own]
            store.wait([f"door-{peer.rank}" for peer in peers], limit)
            doors = [json.loads(store.get(f"door-{peer.rank}")) for peer in peers]
            with ThreadPoolExecutor(len(peers)) as pool:
                found = list(pool.map(lambda peer, where: _try(own, peer, *where), peers, doors))
            store.set(f"tried-{own.rank}", "\n".join(filter(None, found)))
        if own.rank == 0:
            keys = [f"tried-{card.rank}" for card in speakers.values()]
            store.wait(keys, limit)
            store.set("all-tried", "\n".join(filter(None, (store.get(key).decode() for key in keys))))
        store.wait(["all-tried"], 2 * limit)
        problems = store.get("all-tried").decode()
    store.add("tried-read", 1)
    if own.rank == 0:
        wait_until_read(store, "tried-read", len(cards))
    return problems


def _try(own: Card, peer: Card, address: str, port: int) -> str | None:
    """Return what is wrong on the way from `own` to this port of `peer`; print a line for each time without answer."""
    for number in range(_TRIES):
        try:
            socket.create_connection((address, port), timeout=_TRY_S).close()
            return None
        except OSError as error:
            reason = error.strerror or str(error)
            if not isinstance(error, TimeoutError):
                break
            waited_s = (number + 1) * _TRY_S
            print(f"{own.process} waits for {peer.host} at {address}:{port}: {waited_s:g} s", flush=True)
    return (
        f"{own.process} does not reach {peer.host} at {address}:{port} ({reason}), although rank {peer.rank} listens "
        "there: a firewall? All TCP ports must be open between the nodes, in both directions"
    )


def _address(own: Card) -> str:
    """Return the IPv4 address of gloo's interface, or else the address of the way to rank 0."""
    if address := ipv4_of(own.interface):
        return address
    family = socket.AF_INET6 if ":" in own.master_resolves_to else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((own.master_resolves_to, 9))  # sends nothing
        return str(probe.getsockname()[0])
