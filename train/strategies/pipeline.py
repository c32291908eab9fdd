"""torch.distributed.pipelining: each rank computes some neighbouring layers, on one micro-batch after the other.

While the first micro-batches fill the pipeline and the last ones leave it, ranks wait: the bubble.  With stages of even
work the bubble is (stages - 1) / (micro-batches + stages - 1) of the time (GPipe, arXiv:1811.06965, section 2.3).  1F1B
(PipeDream-Flush, arXiv:2006.09503) has the same bubble and keeps fewer activations.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle
from torch.torch_version import TorchVersion
from torch.utils.flop_counter import FlopCounterMode

from train.collectives.broadcast import broadcast_from_rank_0
from train.collectives.sync_batchnorm import has_batchnorm
from train.errors import SharedError
from train.strategies import Autocasting, Context, Wrapped


def wrap(model: nn.Module, context: Context) -> Wrapped:
    """Keep only the layers of this rank in `model`; optimizers take its parameters after this."""
    layers = refuse_what_cannot_be_cut(model, context)
    assert context.micro_batch is not None
    broadcast_from_rank_0([*model.parameters(), *model.buffers()], context.group)
    rank, num_stages = dist.get_rank(context.group), context.world_size
    works, shapes = _meta_forward(layers, context.micro_batch)
    mine = even_stretches(works, num_stages)[rank]
    for name in [name for at, group in enumerate(layers) if at not in mine for name in group]:
        delattr(model, name)
    module = Autocasting(model, context)
    inputs, outputs = shapes[mine.start], shapes[mine.stop]  # known beforehand, so that no rank has to ask for them
    stage = PipelineStage(module, rank, num_stages, context.device, inputs, outputs, group=context.group)

    def norm(gradients: list[Tensor]) -> Tensor:
        square = nn.utils.get_total_norm(gradients).square()
        dist.all_reduce(square, group=context.group)
        return square.sqrt()

    return Wrapped(
        module=model,
        call=nn.Identity(),  # what a loss is computed from comes out of the last stage already
        no_sync=nullcontext,
        state_dict=lambda: _gathered(model),
        norm=norm,
        predict=lambda batch: _predict(stage, batch, inputs.shape, context),
        stage=stage,
    )


Layers = list[dict[str, nn.Module]]


def refuse_what_cannot_be_cut(model: nn.Module, context: Context) -> Layers:
    """Return the named groups of layers between which the model can be cut; raise SharedError if it cannot be cut."""
    if not isinstance(model, nn.Sequential):
        why = "the model is not an nn.Sequential, so it cannot be cut into stages"
    elif has_batchnorm(model):
        why = "BatchNorm would take the statistics of a micro-batch, not of the global batch"
    elif sum(len(list(layer.parameters())) for layer in model) != len(list(model.parameters())):
        why = "two layers of the model share a parameter, which would be trained twice"
    elif len(layers := _with_parameters(model)) < context.world_size:
        why = f"the model has {len(layers)} layers with parameters, too few for {context.world_size} stages"
    elif context.config.accumulate < context.world_size:
        raise SharedError(
            f"--strategy=pipeline needs --accumulate={context.world_size} or more: with {context.config.accumulate} "
            f"a step has too few micro-batches to fill {context.world_size} stages"
        )
    else:
        return layers
    raise SharedError(f"--strategy=pipeline cannot be used here: {why}. Models that work: gpt, mlp, mnist_cnn")


def schedule(device: torch.device) -> type[PipelineScheduleSingle]:
    """Return 1F1B; all forwards before all backwards (GPipe) where torch would lose messages of 1F1B.

    torch/distributed/pipelining/schedules.py starts several sends and receives together.  Before 2.8 it keeps only the
    last.  Gloo drops the others, so ranks wait forever or read unfinished buffers.  NCCL joins them into one.
    """
    loses = torch.__version__ < TorchVersion("2.8") and device.type == "cpu"
    return ScheduleGPipe if loses else Schedule1F1B


def _with_parameters(model: nn.Sequential) -> Layers:
    """Join each layer without parameters to the layer before it; at the start, to the layer after it."""
    groups: Layers = [{}]
    for name, layer in model.named_children():
        has_some = any(True for _ in layer.parameters())
        if has_some and any(True for old in groups[-1].values() for _ in old.parameters()):
            groups.append({})
        groups[-1][name] = layer
    return groups


def _meta_forward(layers: Layers, inputs: Tensor) -> tuple[list[int], list[Tensor]]:
    """Return, from the meta device, the operations of each group of layers, and the tensors before and after them."""
    works, tensors = [], [inputs]
    for group in layers:
        with FlopCounterMode(display=False) as counter:
            for layer in group.values():
                state = {name: t.to("meta") for name, t in [*layer.named_parameters(), *layer.named_buffers()]}
                inputs = torch.func.functional_call(layer, state, (inputs,))
        works.append(counter.get_total_flops())
        tensors.append(inputs.detach().requires_grad_())
    return works, tensors


def even_stretches(works: Sequence[int], stages: int) -> list[range]:
    """Cut `works` into `stages` stretches of neighbours, none empty, with the smallest possible largest sum."""

    @cache
    def best(start: int, left: int) -> tuple[int, tuple[int, ...]]:
        if left == 1:
            return sum(works[start:]), ()
        tried = []
        for cut in range(start + 1, len(works) - left + 2):
            largest, cuts = best(cut, left - 1)
            tried.append((max(sum(works[start:cut]), largest), (cut, *cuts)))
        return min(tried)

    cuts = [0, *best(0, stages)[1], len(works)]
    return [range(start, stop) for start, stop in pairwise(cuts)]


def _predict(stage: PipelineStage, inputs: Tensor, shape: torch.Size, context: Context) -> Tensor | None:
    """Pass a batch through all stages; the last rank returns the outputs.  shape: of a micro-batch for this stage."""
    if not stage.is_first:
        inputs = torch.empty((len(inputs), *shape[1:]), device=context.device)
        dist.recv(inputs, group=context.group, group_src=stage.stage_index - 1)
    outputs: Tensor = stage.submod(inputs)
    if stage.is_last:
        return outputs
    dist.send(outputs, group=context.group, group_dst=stage.stage_index + 1)
    return None


def _gathered(model: nn.Module) -> dict[str, Tensor]:
    """Return the state of all stages on rank 0, in the order of the layers; nothing elsewhere."""
    mine = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    parts: list[dict[str, Tensor]] | None = [{}] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(mine, parts)
    return {name: tensor for part in parts or () for name, tensor in part.items()}
