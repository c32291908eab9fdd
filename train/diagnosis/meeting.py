"""Exchange of the ranks' cards through the store; from them rank 0 judges whether collectives can work at all.

No collective is used here, because each mistake that is found here would make a collective wait until its timeout.
Then the connections between hosts are tried one by one: behind a firewall, collectives would wait without a word.
"""

import json
import socket
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta

import torch.distributed as dist

from train.diagnosis.card import Card
from train.errors import SharedError, UserError
from train.world.environment import World, ipv4_of
from train.world.placement import refuse_different_devices, refuse_shared_devices
from train.world.rendezvous import connect_to_store

_POLL_S = 0.1
_TRIES, _TRY_S = 3, 10.0
# The time that the judgement may take after the last card has come.
_JUDGEMENT_S = 5.0


def open_store(world: World, timeout_s: float) -> dist.TCPStore:
    """Return the store at MASTER_ADDR:MASTER_PORT; on rank 0 this serves it, unless the launcher does.

    Raises UserError; if rank 0 does not run at MASTER_ADDR, the error says so.
    """
    if world.launcher == "none":
        return dist.TCPStore(world.master_addr, 0, 1, is_master=True)
    try:
        return connect_to_store(world, timedelta(seconds=timeout_s))
    except UserError:
        if world.rank == 0 and not world.store_is_served and not _is_own_address(world.master_addr):
            raise UserError(
                f'rank 0 runs on {socket.gethostname()}, but MASTER_ADDR is "{world.master_addr}", which is not an '
                "address of this host: set MASTER_ADDR on all nodes to the host of rank 0"
            ) from None
        raise


def meet(card: Card, store: dist.Store, timeout_s: float) -> list[Card]:
    """Return the cards of all ranks, by rank.  All ranks call it.

    Raises SharedError, with the same message on all ranks, if ranks are missing or do not fit together.
    """
    store.set(f"card-{store.add('arrived', 1)}", json.dumps(asdict(card)))
    if card.rank == 0 and store.add("judges", 1) == 1:
        cards = _wait_for_cards(store, card.world_size, timeout_s)
        mistake = mistakes(cards, card.world_size, timeout_s)
        store.set("judgement", json.dumps((mistake, [asdict(other) for other in cards])))
        wait_until_read(store, "read", len(cards) - 1)
    else:
        try:
            store.wait(["judgement"], timedelta(seconds=timeout_s + _JUDGEMENT_S))
        except RuntimeError:
            raise UserError(
                f"rank {card.rank} reached the store at {card.master_addr}:{card.master_port}, but rank 0 did not "
                f"answer within {timeout_s + _JUDGEMENT_S:g} s: look at the log of rank 0; --rendezvous-timeout-s sets "
                "the limit"
            ) from None
        mistake, known = json.loads(store.get("judgement"))
        cards = [Card(**values) for values in known]
        store.add("read", 1)
    if mistake is not None:
        raise SharedError(mistake)
    cards.sort(key=lambda other: other.rank)
    if card not in cards:  # it came after the judgement
        raise UserError(_started_twice([cards[card.rank], card]))
    return cards


def mistakes(cards: Sequence[Card], world_size: int, timeout_s: float) -> str | None:
    """Return all that keeps these processes from being the ranks of one job, a line each; None if nothing does."""
    found = []
    ranks_of: dict[int, list[Card]] = defaultdict(list)
    for card in sorted(cards, key=lambda card: card.rank):
        ranks_of[card.rank].append(card)
    sizes = sorted({card.world_size for card in cards})
    if len(sizes) > 1:
        by_size = [(size, [card.rank for card in cards if card.world_size == size]) for size in sizes]
        listed = "; ".join(f"WORLD_SIZE is {size} on {named(ranks)}" for size, ranks in by_size)
        found.append(f"world sizes differ: {listed}. Start all nodes with the same numbers of nodes and processes")
    elif missing := [rank for rank in range(world_size) if rank not in ranks_of]:
        found.append(
            f"{named(missing)} of {world_size} did not arrive within {timeout_s:g} s: look at the logs of the missing "
            "ranks. Possible reasons: they were not started, they ended early, their MASTER_ADDR or MASTER_PORT "
            "differs, or a firewall blocks them"
        )
    found += [_started_twice(same) for same in ranks_of.values() if len(same) > 1]
    found += [card.mistake for card in cards if card.mistake is not None]
    hosts = {card.host for card in cards}
    on_loopback = [card.rank for card in cards if card.interface == "lo"]
    if len(hosts) > 1 and on_loopback:
        found.append(
            f"{named(on_loopback)} would use the loopback interface, which the other hosts cannot reach: MASTER_ADDR "
            "resolves to a loopback address there. Use a name that resolves to the same address on all nodes, or set "
            "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
        )
    try:
        refuse_different_devices(
            {card.rank: card.device.partition(":")[0] for card in cards if card.device is not None}
        )
        refuse_shared_devices([(card.host, card.gpu) for card in cards])
    except SharedError as error:
        found.append(str(error))
    return "\n".join(found) or None


def _started_twice(same: Sequence[Card]) -> str:
    places = " and ".join(f"pid {card.pid} on {card.host}" for card in same)
    return f"rank {same[0].rank} was started {len(same)} times ({places}): give each node its own NODE_RANK"


def named(ranks: Sequence[int]) -> str:
    """Return `rank 3` or `ranks 1, 3`."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}"


def _wait_for_cards(store: dist.Store, world_size: int, timeout_s: float) -> list[Card]:
    """Return the cards of all ranks, or those that came in time; stop early if two cards contradict each other."""
    deadline = time.monotonic() + timeout_s
    cards: list[Card] = []
    while time.monotonic() < deadline and {card.rank for card in cards} < set(range(world_size)):
        for number in range(len(cards) + 1, store.add("arrived", 0) + 1):
            cards.append(Card(**json.loads(store.get(f"card-{number}"))))
        if any(card.world_size != world_size for card in cards) or len({card.rank for card in cards}) < len(cards):
            break
        time.sleep(_POLL_S)
    return cards


def wait_until_read(store: dist.Store, key: str, readers: int, limit_s: float = _JUDGEMENT_S) -> None:
    """Keep the store of rank 0 alive until the other ranks know the judgement, for which they count up `key`."""
    deadline = time.monotonic() + limit_s
    while store.add(key, 0) < readers and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _is_own_address(name: str) -> bool:
    for family, kind, protocol, _, target in socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM):
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(target)
                return True
        except OSError:
            continue
    return False


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
        keys = [f"tried-{card.rank}" for card in speakers.values()]
        store.wait(keys, 2 * limit)
        problems = filter(None, (text.decode() for text in store.multi_get(keys)))
    store.add("tried-read", 1)
    if own.rank == 0:
        wait_until_read(store, "tried-read", len(cards))
    return "\n".join(problems)


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
