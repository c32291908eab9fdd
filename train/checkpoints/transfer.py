"""Exchange of a checkpoint between rank 0, which sees the folder, and all other ranks."""

from __future__ import annotations

import io
from typing import Any

import torch
import torch.distributed as dist

from train.checkpoints.folder import Checkpoints
from train.collectives.agreement import mistakes_shared_by_all_ranks
from train.world.environment import World

_MEET_S = 1.0


def load_on_all_ranks(content: bytes | None) -> dict[str, Any] | None:
    """Return rank 0's checkpoint `content` as a state on every rank, so that only rank 0 needs to see the folder.

    A collective; other ranks pass None.  Tensors are on the CPU.  Returns None if rank 0 has no checkpoint.
    """
    size = torch.tensor([len(content or b"")])
    dist.broadcast(size, src=0)
    if not size:
        return None
    message = torch.empty(int(size), dtype=torch.uint8)
    if content:
        message = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    dist.broadcast(message, src=0)
    state: dict[str, Any] = torch.load(io.BytesIO(message.numpy().tobytes()), map_location="cpu", weights_only=True)
    return state


def wait_on_all_ranks(world: World, checkpoints: Checkpoints | None) -> None:
    """Return when rank 0's last save is on the disk; other ranks may pass None.  A collective.

    Meanwhile the ranks exchange a message each second.  A single collective for the whole save would need a timeout
    longer than any save.  With such a timeout the loss of a rank and its node would be noticed later.
    Raises SharedError if the save could not be written.
    """
    ended = torch.zeros(1)
    while not ended:
        ended.fill_(checkpoints is None or checkpoints.ended(_MEET_S))
        dist.all_reduce(ended, op=dist.ReduceOp.MIN)
    with mistakes_shared_by_all_ranks(world):
        if checkpoints is not None:
            checkpoints.wait()
