"""Checkpoints of a model that is spread over the ranks: each rank writes its part by torch.distributed.checkpoint.

CHECKPOINT_DIR/step-00000938/, which all ranks must see, holds files of each rank, their index .metadata and state.pt.
"""

import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn, optim
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from train.checkpoints.folder import Checkpoints
from train.checkpoints.same_run import misfit
from train.collectives.agreement import mistakes_shared_by_all_ranks, while_others_wait
from train.collectives.broadcast import thing_of_rank_0
from train.config import YEAR_S, setting
from train.errors import SharedError, UserError
from train.world.environment import World
from train.world.placement import new_group

# Messages in a gloo group of their own may wait for the slowest disk, while the ranks meet in the default group.
_CPU = torch.device("cpu")


class ShardedCheckpoints(Checkpoints):
    """Checkpoints that all ranks write together.  Making one is a collective, as is `save`, which writes tensors."""

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
        """Save `state`, whose part `shards` differs between the ranks.  Returns as soon as `state` may change again."""
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


@dataclass(frozen=True)
class Spread:
    """Models and optimizers, by their names in a checkpoint, of whose tensors each rank holds a part.

    params: the parameters of the models, by names that do not depend on the number of ranks.
    """

    things: Mapping[str, nn.Module | optim.Optimizer]
    params: Mapping[str, nn.Parameter]

    @classmethod
    def of(cls, things: Mapping[str, Any], params: Sequence[Mapping[str, nn.Parameter]]) -> "Spread":
        """Leave out the things that are neither models nor optimizers; params: of each model that is trained."""
        several = len(params) > 1
        named = {f"{at}." * several + name: x for at, of_model in enumerate(params) for name, x in of_model.items()}
        kept = {name: thing for name, thing in things.items() if isinstance(thing, nn.Module | optim.Optimizer)}
        return cls(kept, named)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return this rank's tensors, and what else the state of each thing has, the same on all ranks."""
        tensors, rest = dict[str, Tensor](), dict[str, Any]()
        for name, thing in self.things.items():
            flat = self._flat(thing)
            tensors |= {f"{name}.{key}": value for key, value in flat.items() if isinstance(value, Tensor)}
            rest[name] = {"values": {key: value for key, value in flat.items() if not isinstance(value, Tensor)}}
            if isinstance(thing, optim.Optimizer):
                groups = thing.state_dict()["param_groups"]
                rest[name]["groups"] = [{key: group[key] for key in group.keys() - {"params"}} for group in groups]
        return tensors, rest

    def refuse_others(self, things: Mapping[str, Any]) -> None:
        """Raise SharedError if another of these things, such as averages of weights, holds parts of tensors, too."""
        others = {name: thing.state_dict() for name, thing in things.items() if name not in self.things}
        if wrong := [name for name, x in others.items() if any(isinstance(leaf, DTensor) for leaf in tree_leaves(x))]:
            raise SharedError(
                f"run.restore(): {', '.join(wrong)} holds parts of a model, and with fsdp only models that run.wrap() "
                "has returned and optimizers of torch.optim's type are saved in parts"
            )

    def load(self, world: World, path: Path, rest: Mapping[str, Any]) -> None:
        """Load this rank's part of a verified checkpoint, which any number of ranks may have saved.  A collective."""
        group = new_group(_CPU, YEAR_S)

        def read() -> dict[str, Tensor]:
            try:
                reader = dcp.FileSystemReader(path)
                tensors = self._as_saved(reader.read_metadata().state_dict_metadata)
                dcp.load(tensors, storage_reader=reader, process_group=group)
            except CheckpointException as error:
                raise UserError(f"cannot read the checkpoint {path}: {_first_failure(error)}") from None
            return tensors

        tensors = while_others_wait(world, read)
        with mistakes_shared_by_all_ranks():
            for name, thing in self.things.items():
                mine = {key.removeprefix(f"{name}."): x for key, x in tensors.items() if key.startswith(f"{name}.")}
                if isinstance(thing, nn.Module):
                    set_model_state_dict(thing, mine | rest[name]["values"])
                else:
                    self._load_optimizer(name, thing, mine | rest[name]["values"], rest[name]["groups"])

    def _flat(self, thing: nn.Module | optim.Optimizer) -> dict[str, Any]:
        if isinstance(thing, nn.Module):
            return get_model_state_dict(thing)
        names, state = self._names(thing), thing.state_dict()["state"]
        return {f"state.{names[at]}.{key}": x for at, of_param in state.items() for key, x in of_param.items()}

    def _names(self, optimizer: optim.Optimizer) -> list[str]:
        """Return the names of an optimizer's parameters, in the order in which its state_dict() numbers them."""
        names = {id(param): name for name, param in self.params.items()}
        return [names[id(param)] for group in optimizer.param_groups for param in group["params"]]

    def _as_saved(self, saved: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return tensors to read into: those of the models, and those that the optimizers had when they were saved."""
        tensors = dict[str, Tensor]()
        for name, thing in self.things.items():
            if isinstance(thing, nn.Module):
                mine = {f"{name}.{key}": x for key, x in self._flat(thing).items() if isinstance(x, Tensor)}
                if differ := [key for key, x in mine.items() if key not in saved or saved[key].size != x.shape]:
                    raise misfit(name, f"{', '.join(differ[:3])} had other shapes, or were absent")
                tensors |= mine
                continue
            params = {f"{name}.state.{param}": self.params[param] for param in self._names(thing)}
            for key, of_key in saved.items():
                if (param := params.get(key.rpartition(".")[0])) is not None:
                    like = param if of_key.size == param.shape else torch.empty(of_key.size)
                    tensors[key] = torch.empty_like(like, dtype=of_key.properties.dtype)
        return tensors

    def _load_optimizer(
        self, name: str, optimizer: optim.Optimizer, flat: Mapping[str, Any], groups: Sequence[dict[str, Any]]
    ) -> None:
        now = [group["params"] for group in optimizer.state_dict()["param_groups"]]
        if len(groups) != len(now):
            raise misfit(name, f"it had {len(groups)} parameter groups and has {len(now)}")
        numbers = {param: number for number, param in enumerate(self._names(optimizer))}
        state = defaultdict[int, dict[str, Any]](dict)
        for key, value in flat.items():
            param, _, entry = key.removeprefix("state.").rpartition(".")
            state[numbers[param]][entry] = value
        groups = [saved | {"params": params} for saved, params in zip(groups, now, strict=True)]
        optimizer.load_state_dict({"state": state, "param_groups": groups})


def _first_failure(error: CheckpointException) -> str:
    rank, (failure, _) = next(iter(error.failures.items()))
    reason = failure.strerror if isinstance(failure, OSError) and failure.strerror else failure
    return f"rank {rank}: {reason}"
