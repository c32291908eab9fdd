"""What CustomDDP refuses, in words for the person who has to mend it: on all ranks, and never by waiting for ever."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from train.bucket import Bucket
from train.errors import SharedError, UserError
from train.lost_ranks import reason, reports
from train.shared_memory import MissingRanks

_NAMES_SHOWN = 5
# In place of whether a parameter was used.
_NOTHING = 2
# Type and device of a parameter.
Kind = tuple[torch.dtype, torch.device]


def refuse_what_has_no_mean(module: nn.Module) -> None:
    """Raise UserError, naming the layer, if there is nothing to average, or a gradient will not fit in a bucket."""
    if not any(param.requires_grad for param in module.parameters()):
        raise UserError("no parameter requires a gradient, so there is nothing to average: leave the module unwrapped")
    for name, part in module.named_modules():
        if getattr(part, "sparse", False) and isinstance(part, nn.Embedding | nn.EmbeddingBag):
            raise UserError(
                f"{name or 'the module'} has sparse gradients, which do not fit in a bucket: use sparse=False"
            )


def refuse_compiled_autograd() -> None:
    """Raise UserError in a compiled backward: it calls hooks, but what is to be done at its end it leaves out."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    if compiled is not None and compiled.in_compiled_autograd_region:
        raise UserError(
            "CustomDDP cannot average in a backward under compiled autograd: leave that off"
            " (torch._dynamo.config.compiled_autograd = False); torch.compile by itself compiles backward, too"
        )


def refuse_different_modules(module: nn.Module, settings: Mapping[str, Any], group: dist.ProcessGroup) -> None:
    """Raise SharedError, naming what differs first, unless all ranks have equal settings and tensors."""
    mine = [f"{name}={_described(value)}" for name, value in settings.items()]
    for name, param in module.named_parameters():
        # Buckets have the memory layout of their parameters, and are averaged element by element.
        layout = "" if param.is_contiguous() else f" strides {param.stride()}"
        mine.append(f"{name} {tuple(param.shape)} {param.dtype}{'' if param.requires_grad else ' frozen'}{layout}")
    mine += [f"{name} {tuple(buffer.shape)} {buffer.dtype} buffer" for name, buffer in module.named_buffers()]
    of_ranks: list[list[str]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(of_ranks, mine, group)
    differences = []
    numbers = dist.get_process_group_ranks(group)
    for rank, theirs in zip(numbers, of_ranks, strict=True):
        for ours, other in zip([*of_ranks[0], "nothing"], [*theirs, "nothing"], strict=False):
            if ours != other:
                differences.append(f"rank {numbers[0]} has {ours}, rank {rank} has {other}")
                break
    if differences:
        counts = ", ".join(str(len(tensors) - len(settings)) for tensors in of_ranks)
        raise SharedError(
            f"the models of the ranks differ: {'; '.join(differences)} "
            f"(numbers of parameters and buffers, by rank: {counts}). All ranks must build the same model"
        )


def refuse_changed_parameters(
    names: Sequence[str], params: Sequence[nn.Parameter], kinds: Sequence[Kind], frozen: Mapping[str, nn.Parameter]
) -> None:
    """Raise UserError, naming the parameter, if one is not what it was when its module was wrapped.

    Args:
        names, params, kinds: of those that are trained; their types and devices then.
        frozen: those that were not to be trained then, by name.
    """
    for name, param in frozen.items():
        if param.requires_grad:
            raise UserError(f"{name} was frozen when CustomDDP was made and is not now: wrap the module again")
    if [(param.dtype, param.device) for param in params] != kinds:
        for name, param, (dtype, device) in zip(names, params, kinds, strict=True):
            if (param.dtype, param.device) != (dtype, device):
                raise UserError(
                    f"{name} was {dtype} on {device} when CustomDDP was made and is {param.dtype} on {param.device} "
                    "now: convert and move the module first, then wrap it"
                )


def refuse_different_graphs(
    names: Sequence[str], arrived: Set[int] | None, device: torch.device, group: dist.ProcessGroup
) -> None:
    """Raise SharedError, naming parameters and ranks, if some ranks used a parameter in this step and some not.

    A collective.

    Args:
        names: of the parameters.
        arrived: indices of those that got a gradient on this rank; None if it has nothing to compare.
    """
    took = [_NOTHING if arrived is None else index in arrived for index in range(len(names))]
    mine = torch.tensor(took, dtype=torch.uint8, device=device)
    of_ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(of_ranks, mine, group)
    used = torch.stack(of_ranks).cpu()
    compared = used[:, 0] != _NOTHING
    ranks = torch.tensor(dist.get_process_group_ranks(group))[compared]
    used = used[compared].bool()
    lines = [
        f"{names[index]}: no gradient on rank {_listed(ranks[~used[:, index]].tolist())}"
        for index in (used.any(0) & ~used.all(0)).nonzero().flatten().tolist()
    ]
    if lines:
        raise SharedError("\n".join(["the ranks ran different graphs, which same_graph=True forbids", *lines]))


@contextmanager
def bucket_explained(bucket: Bucket, position: str, group: dist.ProcessGroup) -> Iterator[None]:
    """Turn the failure of a collective into a UserError: which bucket, which parameters, which ranks are missing."""
    try:
        yield
    except RuntimeError as error:
        names = ", ".join(bucket.names[:_NAMES_SHOWN])
        more = f" and {len(bucket.names) - _NAMES_SHOWN} more" if len(bucket.names) > _NAMES_SHOWN else ""
        what = f"the gradients of {names}{more} ({position}) were not averaged: {reason(error)}"
        if not isinstance(error, MissingRanks):
            what = "\n".join([what, *reports(position, group)])
        raise UserError(what) from error


def _described(value: object) -> str:
    """The same on all ranks for the same setting: without addresses, which the repr of a function or an object has."""
    if isinstance(value, partial):
        options = [*map(_described, value.args), *(f"{key}={_described(v)}" for key, v in value.keywords.items())]
        return f"{_described(value.func)}({', '.join(options)})"
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return _described(type(value)) if type(value).__repr__ is object.__repr__ else repr(value)


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))
