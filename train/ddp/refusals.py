"""Errors that CustomDDP raises instead of waiting forever, in words for the person who has to fix them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from train.collectives.broadcast import of_all_ranks
from train.ddp.gradient_hooks import is_compiled_backward
from train.errors import SharedError, UserError


def refuse_compiled_autograd() -> None:
    """Raise UserError under compiled autograd, which runs hooks but skips end-of-backward callbacks."""
    if is_compiled_backward():
        raise UserError(
            "CustomDDP cannot average in a backward under compiled autograd: turn it off"
            " (torch._dynamo.config.compiled_autograd = False). torch.compile still compiles the backward"
        )


def refuse_different_modules(module: nn.Module, options: Mapping[str, Any], group: dist.ProcessGroup) -> None:
    """Raise SharedError, naming what differs first, unless all ranks have equal options and tensors."""
    mine = [f"{name}={_described(value)}" for name, value in options.items()]
    for name, param in module.named_parameters():
        # Buckets have the memory layout of their parameters, and are averaged element by element.
        layout = "" if param.is_contiguous() else f" strides {param.stride()}"
        mine.append(f"{name} {tuple(param.shape)} {param.dtype}{'' if param.requires_grad else ' frozen'}{layout}")
    mine += [f"{name} {tuple(buffer.shape)} {buffer.dtype} buffer" for name, buffer in module.named_buffers()]
    of_ranks, differences = of_all_ranks(mine, group), []
    numbers = dist.get_process_group_ranks(group)
    for rank, theirs in zip(numbers, of_ranks, strict=True):
        for ours, other in zip([*of_ranks[0], "nothing"], [*theirs, "nothing"], strict=False):
            if ours != other:
                differences.append(f"rank {numbers[0]} has {ours}, rank {rank} has {other}")
                break
    if differences:
        counts = ", ".join(str(len(tensors) - len(options)) for tensors in of_ranks)
        raise SharedError(
            f"the models of the ranks differ: {'; '.join(differences)} "
            f"(numbers of parameters and buffers, by rank: {counts}). All ranks must build the same model"
        )


def refuse_changes(as_wrapped: Sequence[tuple[str, nn.Parameter, bool, torch.dtype, torch.device]]) -> None:
    """Raise UserError, naming the parameter, if one is no longer frozen or has another type or device."""
    for name, param, was_trained, dtype, device in as_wrapped:
        if not was_trained and param.requires_grad:
            raise UserError(f"{name} was frozen when CustomDDP was made, but is now trained: wrap the module again")
        if was_trained and (param.dtype is not dtype or param.device != device):
            raise UserError(
                f"{name} was {dtype} on {device} when CustomDDP was made and is {param.dtype} on {param.device} "
                "now: convert and move the module first, then wrap it"
            )


def _described(value: object) -> str:
    """Return a text that is equal on all ranks for equal settings: without addresses, which repr() may show."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
