"""What CustomDDP refuses, in words for the person who has to mend it: on all ranks, and never by waiting for ever."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import nn

from train.bucket import Bucket
from train.errors import SharedError, UserError
from train.lost_ranks import reason, reports
from train.shared_memory import MissingRanks

_NAMES_SHOWN = 5


def refuse_what_has_no_mean(module: nn.Module) -> None:
    """Raise UserError, naming the layer, if there is nothing to average, or a gradient will not fit in a bucket."""
    if not any(param.requires_grad for param in module.parameters()):
        raise UserError("no parameter requires a gradient, so there is nothing to average: leave the module unwrapped")
    for name, part in module.named_modules():
        if getattr(part, "sparse", False) and isinstance(part, nn.Embedding | nn.EmbeddingBag):
            raise UserError(
                f"{name or 'the module'} has sparse gradients, which do not fit in a bucket: use sparse=False"
            )


def refuse_different_modules(module: nn.Module, settings: Mapping[str, Any], group: dist.ProcessGroup) -> None:
    """Raise SharedError, naming what differs first, unless all ranks have equal settings and tensors."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    mine = [f"{name}={getattr(value, '__name__', value)}" for name, value in settings.items()]
    mine += [
        f"{name} {tuple(tensor.shape)} {tensor.dtype}{' frozen' if not tensor.requires_grad else ''}"
        for name, tensor in tensors
    ]
    of_ranks: list[list[str]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(of_ranks, mine, group)
    differences = []
    for rank, theirs in enumerate(of_ranks):
        for ours, other in zip([*of_ranks[0], "nothing"], [*theirs, "nothing"], strict=False):
            if ours != other:
                differences.append(f"rank 0 has {ours}, rank {rank} has {other}")
                break
    if differences:
        counts = ", ".join(str(len(tensors) - len(settings)) for tensors in of_ranks)
        raise SharedError(
            f"the models of the ranks differ: {'; '.join(differences)} "
            f"(numbers of parameters and buffers, by rank: {counts}). All ranks must build the same model"
        )


def refuse_different_graphs(buckets: Sequence[Bucket], group: dist.ProcessGroup) -> None:
    """Raise SharedError, naming parameters and ranks, if some ranks used a parameter in this backward and some not."""
    partly = [names for bucket in buckets if (names := bucket.partly_used())]
    # All ranks hold the same numbers, so all come here or none.
    if not partly:
        return
    absent: list[list[str]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(absent, [name for bucket in buckets for name in bucket.absent()], group)
    lines = [
        f"{name}: no gradient on rank {_listed(rank for rank, names in enumerate(absent) if name in names)}"
        for names in partly
        for name in names
    ]
    raise SharedError("\n".join(["the ranks ran different graphs, which same_graph=True forbids", *lines]))


@contextmanager
def explained(bucket: Bucket, position: str, group: dist.ProcessGroup) -> Iterator[None]:
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


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))
