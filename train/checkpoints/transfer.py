"""The way of a checkpoint from rank 0, which sees the folder, to all other ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from train.checkpoints.folder import Memory
from train.collectives.agreement import while_others_wait
from train.world.environment import World

_PIECE_BYTES = 256 * 2**20  # of one message, because a timeout limits each message


def load_on_all_ranks(world: World, content: Memory | None) -> dict[str, Any] | None:
    """Return rank 0's checkpoint `content` as a state on every rank, so that only rank 0 needs to see the folder.

    A collective; other ranks pass None.  Tensors are on the CPU.  Returns None if rank 0 has no checkpoint.
    """
    size = torch.tensor([len(content or b"")])
    dist.broadcast(size, src=0)
    if not size:
        return None
    memory = content or Memory(-1, int(size))
    for piece in torch.frombuffer(memory, dtype=torch.uint8).split(_PIECE_BYTES):
        dist.broadcast(piece, src=0)
    # From the file that the memory is: a file of bytes would be a second copy of all of it.
    file: Any = memory
    state: dict[str, Any] = while_others_wait(world, lambda: torch.load(file, map_location="cpu", weights_only=True))
    return state
