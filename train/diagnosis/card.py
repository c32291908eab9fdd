"""Card: what a rank says about itself before any collective is tried."""

import hashlib
import os
import platform
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from train.errors import UserError
from train.world.environment import World
from train.world.placement import device_identity, pick_device


@dataclass(frozen=True)
class Card:
    """One process, as it sees itself.

    master_resolves_to: the address that this rank's host gives for MASTER_ADDR.
    interface: the network interface of gloo.  gloo_address: where gloo would listen in a script that chooses none; None
    if GLOO_SOCKET_IFNAME chooses one.  device: None if this rank has none; `mistake` says why.
    gpu: UUID, None for a CPU.  code: first digits of the SHA-256 over the files of the package train.
    """

    rank: int
    world_size: int
    local_rank: int
    host: str
    pid: int
    launcher: str
    master_addr: str
    master_port: int
    master_resolves_to: str
    interface: str
    device: str | None
    gpu: str | None
    torch: str
    python: str
    code: str
    mistake: str | None = None
    gloo_address: str | None = None

    @property
    def backend(self) -> str:
        return "nccl" if (self.device or "").startswith("cuda") else "gloo"

    @property
    def process(self) -> str:
        return f"rank {self.rank} ({self.host}, pid {self.pid})"


def gloo_address() -> str | None:
    """Return the address of this host's own name, which gloo takes; None if GLOO_SOCKET_IFNAME is set."""
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return None
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return "127.0.0.1"  # to which gloo falls back


def own_card(world: World, wanted_device: str, gloo_address: str | None) -> Card:
    """Return the card of this process.  MASTER_ADDR must resolve, and gloo's interface must be chosen by now."""
    mistake, device = None, None
    host, gpu = socket.gethostname(), None
    try:
        device = pick_device(world, wanted_device)
        host, gpu = device_identity(device)
    except UserError as error:
        mistake = str(error)
    addresses = socket.getaddrinfo(world.master_addr, None)
    family_and_address = min((family != socket.AF_INET, str(target[0])) for family, _, _, _, target in addresses)
    of_world = ("rank", "world_size", "local_rank", "launcher", "master_addr", "master_port")
    return Card(
        **{name: getattr(world, name) for name in of_world},
        host=host,
        pid=os.getpid(),
        master_resolves_to=family_and_address[1],
        interface=os.environ.get("GLOO_SOCKET_IFNAME", "gloo's choice"),
        device=None if device is None else str(device),
        gpu=gpu,
        torch=torch.__version__,
        python=platform.python_version(),
        code=_fingerprint(),
        mistake=mistake,
        gloo_address=gloo_address,
    )


def table(cards: Sequence[Card]) -> str:
    rows = [("rank", "host", "pid", "device", "backend", "interface", "MASTER_ADDR", "torch", "code")]
    for card in cards:
        address = f"{card.master_addr}:{card.master_port}"
        if card.master_resolves_to != card.master_addr:
            address += f" = {card.master_resolves_to}"
        place = (str(card.rank), card.host, str(card.pid), card.device or "none")
        rows.append((*place, card.backend, card.interface, address, card.torch, card.code))
    return in_columns(rows)


def in_columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def _fingerprint() -> str:
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:8]
