"""The kind of step that a config asks for, and how a model becomes one that it trains."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from train import strategies
from train.collectives.sync_batchnorm import SyncBatchNorm, has_batchnorm
from train.config import TrainConfig, setting
from train.errors import SharedError
from train.loop import exact_step
from train.loop.halving_step import HalvingStep
from train.loop.numerics import compile_model
from train.loop.step import Step
from train.strategies import Wrapped
from train.world import placement
from train.world.environment import World


def make_engine(config: TrainConfig, world: World, device: torch.device) -> Step:
    """Return what makes the steps of a run.  A collective."""
    group = placement.gradient_group(device, config.collective_timeout_s)
    context = strategies.Context(config, device, group, world.world_size)
    if config.strategy == "pipeline":
        from train.loop.pipeline_step import PipelineStep  # here, as torch takes a second to import what it needs

        return PipelineStep(config, world, context)
    kind = exact_step.ExactStep if config.logical_world else HalvingStep if config.on_oom == "halve" else Step
    return kind(config, world, context)


def wrap(engine: Step, model: nn.Module, micro_batch: Tensor | None) -> Wrapped:
    """Let the engine train a model, on this rank's device and with rank 0's weights.  A collective."""
    config, context = engine.config, engine.context
    model = model.to(engine.device)
    several = context.world_size > 1 or config.strategy == "fsdp"  # whose bf16 fits no other BatchNorm
    if config.sync_batchnorm and config.logical_world and has_batchnorm(model):
        raise SharedError(
            f"{setting('logical_world')} computes slice by slice, and synchronised BatchNorm all slices at once: add "
            f"{setting('sync_batchnorm', False)} (each slice is normalised by its own samples)"
        )
    if config.sync_batchnorm and several and has_batchnorm(model):
        model = SyncBatchNorm.convert_sync_batchnorm(model, context.group)
    if config.compile:
        compile_model(model)
    apart = any(part._buffers for part in model.modules() if not isinstance(part, SyncBatchNorm))
    own_buffers = context.world_size > 1 and apart and not config.logical_world
    of_model = replace(context, ranks_have_own_buffers=own_buffers, micro_batch=micro_batch)
    wrapped = (
        exact_step.wrap(model, of_model) if config.logical_world else strategies.wrap(config.strategy, model, of_model)
    )
    engine.context = replace(context, ranks_have_own_buffers=own_buffers or context.ranks_have_own_buffers)
    engine.add(wrapped)
    return wrapped
