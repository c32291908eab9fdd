"""Strategies by which processes share a model, one file each: `wrap` returns what one training step calls."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train.config import TrainConfig


@dataclass(frozen=True)
class Context:
    """The input of a strategy: the settings, the device and the ranks that share the model.

    group: the ranks that share the model (None is the default group); world_size: how many they are.
    ranks_have_own_buffers: BatchNorm is not synchronised, so rank 0's buffers have to be sent.
    micro_batch: shape and type of a pipeline's inputs, on the meta device.
    """

    config: TrainConfig
    device: torch.device
    group: dist.ProcessGroup | None
    world_size: int
    ranks_have_own_buffers: bool = False
    micro_batch: Tensor | None = None


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Return the context in which a forward computes: bf16 or fp16 where torch finds it safe, otherwise no change."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)


class Autocasting(nn.Module):
    """Computes in the type of the run, in any thread; the outputs are float32, so that their type is known."""

    def __init__(self, layers: nn.Module, context: Context) -> None:
        super().__init__()
        self.layers, self.precision, self.device = layers, context.config.precision, context.device

    def forward(self, inputs: Tensor) -> Tensor:
        with autocast(self.precision, self.device):
            outputs: Tensor = self.layers(inputs)
        return outputs.float()


@dataclass(frozen=True)
class Wrapped:
    """A model as a strategy runs it.  The optimizer has the parameters of the bare model.

    module: the bare model.
    call: the forward of one micro-batch.  Its backward averages the gradients over the ranks.
    no_sync: a context in which backwards only add to p.grad, for all micro-batches of a step but the last.
    state_dict: the state of the whole model, with the bare model's names; at least on rank 0.  All ranks call it
        together.
    norm: the norm of gradients after the last backward of a step, one number on the device, the same on all ranks.
    after_backward: called between the last backward of a step and `norm`.  Only average_after_backward needs it.
    predict: the forward of an evaluation, on all ranks together; it returns None on a rank that does not get the
        logits.  Without `predict` the bare model is called.
    stage: the PipelineStage of this rank, which train.loop.pipeline_step runs.
    """

    module: nn.Module
    call: nn.Module
    no_sync: Callable[[], AbstractContextManager[None]]
    state_dict: Callable[[], dict[str, Any]]
    norm: Callable[[list[Tensor]], Tensor] = nn.utils.get_total_norm
    after_backward: Callable[[], None] = lambda: None
    predict: Callable[[Tensor], Tensor | None] | None = None
    stage: Any = None


def replicated(
    model: nn.Module, call: nn.Module, no_sync: Callable[[], AbstractContextManager[None]] = nullcontext, **more: Any
) -> Wrapped:
    """Return `call` as a strategy in which every rank holds all parameters and all gradients of `model`."""
    bare = getattr(model, "_orig_mod", model)  # torch.compile() puts another name before those of the parameters
    return Wrapped(bare, call, no_sync, bare.state_dict, **more)


def wrap(name: str, model: nn.Module, context: Context) -> Wrapped:
    """Return `model` wrapped by the strategy in the file `name`.py; optimizers take its parameters after this."""
    wrapped: Wrapped = import_module(f"train.strategies.{name}").wrap(model, context)
    return wrapped
