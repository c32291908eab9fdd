"""What train.doctor examines: where the ranks are, whether they fit together, and a first all-reduce."""

import hashlib
import os
import platform
import socket
import time
from collections.abc import Sequence
from concurrent.futures import TimeoutError
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from train.collectives.broadcast import of_all_ranks
from train.collectives.missing_ranks import naming_missing_ranks
from train.config import TrainConfig
from train.errors import SharedError, UserError, differences
from train.world.environment import World
from train.world.placement import (
    device_identity,
    gradient_group,
    pick_device,
    refuse_different_devices,
    refuse_shared_devices,
)
from train.world.threads import in_thread

_MIB = 16  # of the all-reduce


@dataclass(frozen=True)
class Card:
    """What a rank says of itself.

    device: "none" if there is none; `mistake` says why.  gpu: UUID, None for a CPU.
    """

    rank: int
    host: str
    pid: int
    device: str
    gpu: str | None
    interface: str
    versions: str
    mistake: str | None

    @property
    def backend(self) -> str:
        return "nccl" if self.device.startswith("cuda") else "gloo"


def examine(world: World, config: TrainConfig) -> None:
    """Let rank 0 print where the ranks are, and time an all-reduce.  Raises UserError if something is wrong."""
    with naming_missing_ranks():
        cards = of_all_ranks(_own_card(world, config.device))
        if world.rank == 0:
            print(_table(cards, f"{world.master_addr}:{world.master_port}"), flush=True)
        if found := mistakes(cards):
            raise SharedError("\n".join(found))
        device = torch.device(cards[world.rank].device)
        group = gradient_group(device, config.collective_timeout_s)
        try:
            # In a thread, because NCCL would wait for a missing rank without a word.
            times = in_thread(lambda: _times(device, group)).result(3 * config.collective_timeout_s)
        except TimeoutError:
            raise UserError(
                "the all-reduce over NCCL did not end: set NCCL_DEBUG=INFO, and look at the network"
            ) from None
    if world.rank == 0:
        by_rank = " ".join(f"{1000 * seconds:.2f}" for seconds in times)
        print(f"all-reduce of {_MIB} MiB over {cards[0].backend}, milliseconds by rank: {by_rank}\nno problem found")


def _times(device: torch.device, group: dist.ProcessGroup | None) -> list[float]:
    for _ in range(2):  # the first all-reduce connects
        values = torch.ones(_MIB * 2**18, device=device)
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(values, group=group)
        right = bool((values == dist.get_world_size()).all())  # waits for a GPU
        seconds = time.perf_counter() - started
    if not right:
        raise UserError(f"rank {dist.get_rank()}: the all-reduce of ones gives a wrong sum")
    return of_all_ranks(seconds)


def _own_card(world: World, wanted: str) -> Card:
    mistake, device, host, gpu = None, "none", socket.gethostname(), None
    try:
        found = pick_device(world, wanted)
        device, (host, gpu) = str(found), device_identity(found)
    except UserError as error:
        mistake = f"rank {world.rank}: {error}"
    code = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        code.update(file.read_bytes())
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, code {code.hexdigest()[:8]}"
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "gloo's choice")
    return Card(world.rank, host, os.getpid(), device, gpu, interface, versions, mistake)


def mistakes(cards: Sequence[Card]) -> list[str]:
    """Return a sentence for each thing that keeps these processes from training together."""
    found = [card.mistake for card in cards if card.mistake is not None]
    if listed := differences({card.rank: card.versions for card in cards}):
        found.append(f"versions or files of train/ differ: {listed}. Use the same image or environment on all nodes")
    try:
        refuse_different_devices({card.rank: card.device.partition(":")[0] for card in cards if not card.mistake})
        refuse_shared_devices([(card.host, card.gpu) for card in cards])
    except SharedError as error:
        found.append(str(error))
    return found


def _table(cards: Sequence[Card], address: str) -> str:
    rows = [("rank", "host", "pid", "device", "interface", "versions")]
    rows += [(str(card.rank), card.host, str(card.pid), card.device, card.interface, card.versions) for card in cards]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([f"{len(cards)} processes met at {address}", *lines])
