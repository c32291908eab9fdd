"""Checkpoints of a model that is spread over the ranks: each rank writes its part by torch.distributed.checkpoint.

CHECKPOINT_DIR/step-00000938/, which all ranks must see, holds files of each rank, their index .metadata and state.pt.
"""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn, optim
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from train.checkpoints.folder import Checkpoints
from train.checkpoints.same_run import misfit
from train.collectives.agreement import mistakes_shared_by_all_ranks, while_others_wait
from train.collectives.broadcast import thing_of_rank_0
from train.config import YEAR_S, setting
from train.errors import UserError
from train.world.environment import World
from train.world.placement import new_group

_BY_NAME = StateDictOptions(flatten_optimizer_state_dict=True)
# Messages in a gloo group of their own may wait for the slowest disk, while the ranks meet in the default group.
_CPU = torch.device("cpu")


class ShardedCheckpoints(Checkpoints):
    """Checkpoints that all ranks write together; `save` is a collective that writes the tensors before it returns.

    Making it is a collective.  Raises SharedError if the folder cannot be written or another rank does not see it.
    """

    def __init__(self, folder: Path, say: Callable[[str], None], world: World) -> None:
        self._world, self._group = world, new_group(_CPU, YEAR_S)
        probe = folder / thing_of_rank_0(f".unfinished-{uuid.uuid4().hex}")
        with mistakes_shared_by_all_ranks():
            super().__init__(folder, say=say, cleans=world.rank == 0)
            if world.rank == 0:
                probe.mkdir()
        with mistakes_shared_by_all_ranks():
            if not probe.is_dir():
                raise UserError(
                    f"{setting('checkpoint_dir')} {folder} is not the same folder as on rank 0. With fsdp and "
                    "pipeline every rank writes its part there: give a folder on a disk that all nodes share"
                )
        if world.rank == 0:
            probe.rmdir()

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Save `state`, whose part `shards` differs between the ranks.  Returns as soon as `state` may change again.

        Raises SharedError if a rank could not write its part.
        """
        with mistakes_shared_by_all_ranks():
            try:
                if self._world.rank == 0:
                    self.make_beside(step)
            except OSError as error:
                raise UserError(self._not_saved(error.strerror)) from None
        state = dict(state)
        parts = state.pop("shards")

        def write_parts() -> None:
            try:
                dcp.save(parts, storage_writer=dcp.FileSystemWriter(self.beside(step)), process_group=self._group)
            except CheckpointException as error:
                raise UserError(self._not_saved(_first_failure(error))) from None

        while_others_wait(self._world, write_parts, "saving a checkpoint")
        if self._world.rank == 0:
            self._pending = self._thread.submit(self._finish, step, self._copied(state), False)


def shards(model: nn.Module, optimizer: optim.Optimizer) -> dict[str, Tensor]:
    """Return what this rank holds of model and optimizer, by names that do not depend on the number of ranks."""
    of_model, of_optimizer = get_state_dict(model, optimizer, options=_BY_NAME)
    return {
        prefix + name: value
        for prefix, of_part in (("model.", of_model), ("optimizer.", of_optimizer))
        for name, value in of_part.items()
        if isinstance(value, Tensor)  # the rest are the optimizer's settings, which come from the config
    }


def load_shards(world: World, path: Path, model: nn.Module, optimizer: optim.Optimizer) -> None:
    """Load this rank's part of a verified checkpoint, which any number of ranks may have saved.

    A collective.  Raises SharedError if a part is missing or cannot be read.
    """
    wanted, group = shards(model, optimizer), new_group(_CPU, YEAR_S)

    def read() -> None:
        try:
            reader = dcp.FileSystemReader(path)
            saved = reader.read_metadata().state_dict_metadata
            if why := misfit("the model", {name: saved[name] for name in wanted if name in saved}, wanted):
                raise UserError(why)
            dcp.load(wanted, storage_reader=reader, process_group=group)
        except CheckpointException as error:
            raise UserError(f"cannot read the checkpoint {path}: {_first_failure(error)}") from None

    while_others_wait(world, read)
    now: Any = get_state_dict(model, optimizer, options=_BY_NAME)
    of_model, of_optimizer = (
        {name: wanted.get(prefix + name, value) for name, value in of_part.items()}
        for prefix, of_part in zip(("model.", "optimizer."), now, strict=True)
    )
    set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer, options=_BY_NAME)


def _first_failure(error: CheckpointException) -> str:
    rank, (failure, _) = next(iter(error.failures.items()))
    reason = failure.strerror if isinstance(failure, OSError) and failure.strerror else failure
    return f"rank {rank}: {reason}"
