"""Steps from a config to a Trainer: data, model, strategy, observers.  `python -m train` calls them in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train import datasets, models, strategies
from train.checkpoints.folder import Checkpoints, Memory, checkpoint_path, find_checkpoint, read_checkpoint
from train.checkpoints.transfer import load_on_all_ranks
from train.collectives.agreement import mistakes_shared_by_all_ranks, while_others_wait
from train.collectives.sync_batchnorm import convert_sync_batchnorm, has_batchnorm
from train.config import TrainConfig
from train.cpu.malloc import keep_freed_memory
from train.data.batches import Batches
from train.data.sampler import ShardSampler, evaluation_steps
from train.datasets import Samples
from train.errors import UserError
from train.loop.compilation import compile_model
from train.loop.export import refuse_impossible_export
from train.loop.halving_step import HalvingStep
from train.loop.numerics import set_numerics
from train.loop.optimizers import make_optimizer
from train.loop.run import Run
from train.loop.schedules import refuse_impossible_schedule
from train.loop.step import Step, refuse_impossible, refuse_single_samples
from train.loop.trainer import Trainer
from train.loop.watchdog import Watchdog
from train.records import progress, start
from train.records.metrics import MetricsFile
from train.records.observer import Observer
from train.records.profile import Profile, profiles
from train.records.tensorboard import TensorBoard
from train.world import placement
from train.world.environment import World
from train.world.owner import Owner
from train.world.signals import StopSignal


@dataclass
class Parts:
    """The parts that a rank has loaded before training, each checked on all ranks.

    model: on `device`, not yet wrapped; least: how many samples it can be trained on at least.
    owned: the folders of the run, on rank 0; its end releases them.
    saved: the bytes of the checkpoint to continue, until they are loaded; checkpoints: where rank 0 saves.
    observers: of this rank; `metrics` is among them on rank 0, and writes nothing on other ranks.
    """

    device: torch.device
    samples: Samples
    validation: Samples
    model: nn.Module
    least: int
    owned: ExitStack
    saved: Memory | None
    checkpoints: Checkpoints | None
    metrics: MetricsFile
    observers: list[Observer]


def configure_torch(config: TrainConfig) -> None:
    """Set torch's options for the whole process, before CUDA starts."""
    keep_freed_memory()
    set_numerics(config)


def load_parts(config: TrainConfig, world: World) -> Parts:
    """Return data, model, checkpoint and record files.  A collective.

    Raises SharedError if any of them is missing, damaged or impossible on any rank.
    """
    is_rank_0 = world.rank == 0
    say: Callable[[str], None] = progress.say if is_rank_0 else lambda text: None
    datasets.download(config.dataset, config.data_root, world)
    folder = Path(config.checkpoint_dir) if config.checkpoint_dir else None
    saves_in = None if config.evaluate_only else folder  # a training may be saving in the same folder
    with mistakes_shared_by_all_ranks(world):
        device = placement.pick_device(world, config.device)
        refuse_impossible(config, world, device)
        samples = datasets.load(config.dataset, config.data_root, "train", config.seed)
        validation = datasets.load(config.dataset, config.data_root, "validation", config.seed)
        torch.manual_seed(config.seed)
        model = models.build(config.model, samples.shape, samples.num_classes, config.dropout).to(device)
        least = models.fewest_samples(model, samples.shape)
        sampler = _sampler(config, world, samples, least)
        refuse_single_samples(config, world, sampler)
        refuse_impossible_schedule(config, len(sampler))
        if is_rank_0 and config.export is not None:
            refuse_impossible_export(config.export)
    folders = {"--run-dir": config.run_dir, "--checkpoint-dir": saves_in} if is_rank_0 else {}
    owned = while_others_wait(world, lambda: _own(folders, say))
    saved = _find_checkpoint(config, world, folder, say)
    checkpoints: Checkpoints | None = None
    if saves_in and config.spreads_model:
        # Imported here: torch takes a second to import what it needs.
        from train.checkpoints.sharded import ShardedCheckpoints

        checkpoints = ShardedCheckpoints(saves_in, config.keep_checkpoints, say, world)
    with mistakes_shared_by_all_ranks(world):
        if is_rank_0 and saves_in and not config.spreads_model:
            checkpoints = Checkpoints(saves_in, config.keep_checkpoints, say)
        if is_rank_0 and config.evaluate_only and saved is None:
            raise UserError(f"--evaluate-only: there is no checkpoint in {config.checkpoint_dir} to evaluate")
        metrics = MetricsFile(config.run_dir if is_rank_0 else None)
        more = _optional_observers(config, world, device)
    # Progress comes first: batch scripts look for its last line, and the disk of the metrics may be full.
    observers: list[Observer] = [progress.Progress(), metrics] if is_rank_0 else []
    if world.world_size > 1:
        more.append(Watchdog(world, 0.95 * config.collective_timeout_s))
    return Parts(device, samples, validation, model, least, owned, saved, checkpoints, metrics, [*observers, *more])


def _own(folders: Mapping[str, str | Path | None], say: Callable[[str], None]) -> ExitStack:
    """Own the folders, given by flag, until the stack is closed.  Raises UserError if another run owns one."""
    with ExitStack() as owned:
        for folder, flag in {Path(name).resolve(): flag for flag, name in folders.items() if name is not None}.items():
            try:
                owned.callback(Owner(folder, say).release)
            except OSError as error:
                raise UserError(f"{flag}: cannot write {folder}: {error.strerror}") from None
        return owned.pop_all()


def _find_checkpoint(
    config: TrainConfig, world: World, folder: Path | None, say: Callable[[str], None]
) -> Memory | None:
    """Return the bytes of the checkpoint to continue, on rank 0.  A collective.

    If every rank sees the folder, each verifies its share of the files.
    """
    if not config.spreads_model:
        return while_others_wait(
            world, lambda: find_checkpoint(config.resume, folder, say) if world.rank == 0 else None
        )

    def read(path: Path) -> Memory:
        return while_others_wait(world, lambda: read_checkpoint(path, world.rank, world.world_size))

    def of_rank_0(paths: list[Path]) -> list[Path]:
        lists = [paths]
        dist.broadcast_object_list(lists)
        return lists[0]

    return find_checkpoint(config.resume, folder, say, read, of_rank_0)


def _optional_observers(config: TrainConfig, world: World, device: torch.device) -> list[Observer]:
    """Return the optional observers that this rank was asked for.  Raises UserError if that cannot be done here."""
    observers: list[Observer] = []
    if config.tensorboard and world.rank == 0:
        observers.append(TensorBoard(str(config.run_dir), device))
    if config.profile is not None and profiles(config.profile_ranks, world.rank):
        observers.append(Profile(config.profile, str(config.run_dir), world.rank, device))
    return observers


def report_start(config: TrainConfig, world: World, parts: Parts) -> None:
    """Report to the observers where the ranks are and how they share the global batch.  A collective."""
    where = placement.where_ranks_are(world, parts.device)
    numbers = start.arithmetic(config, world, _sampler(config, world, parts.samples, parts.least))
    record = start.start_record(config, world, parts.device, where, numbers)
    for observer in parts.observers:
        observer.run_started(record)


def make_trainer(config: TrainConfig, world: World, stop: StopSignal, parts: Parts) -> Trainer:
    """Return the trainer, at its first step or where the checkpoint was saved.  A collective.

    Raises SharedError if the checkpoint belongs to another run or the strategy does not fit.
    """
    device, model = parts.device, parts.model
    group = placement.gradient_group(device, config.collective_timeout_s)
    several = world.world_size > 1 or config.strategy == "fsdp"  # whose bf16 fits no other BatchNorm
    global_batchnorm = config.sync_batchnorm and several and has_batchnorm(model)
    if global_batchnorm:
        own = placement.new_group(device, config.collective_timeout_s) if config.batchnorm_group == "own" else group
        model = convert_sync_batchnorm(model, own)
    if config.compile:
        compile_model(model, device)
    context = strategies.Context(
        device,
        group,
        world.world_size,
        config.bucket_mib,
        ranks_have_own_buffers=world.world_size > 1 and not global_batchnorm,
        sync=config.sync,
        sync_batchnorm=config.sync_batchnorm,
        precision=config.precision,
        fsdp_wrap=config.fsdp_wrap,
        fsdp_reshard=config.fsdp_reshard,
        pipeline_schedule=config.pipeline_schedule,
        micro_batch=_micro_batch(config, parts.samples),
        micro_batches=config.accumulate,
    )
    wrapped = strategies.wrap(config.strategy, model, context)
    run = Run(config, world, context, parts.checkpoints, stop)

    sampler = _sampler(config, world, parts.samples, parts.least)
    evaluated = evaluation_steps(len(parts.validation), config.batch_size, sampler.rank, sampler.world_size)
    input_options = (config.input, config.workers, world.local_world_size)
    trainer = Trainer(
        run,
        _make_step(run, model, wrapped),
        sampler,
        Batches(parts.samples, sampler, device, *input_options),
        Batches(parts.validation, evaluated, device, *input_options),
        parts.observers,
    )
    saved, parts.saved = parts.saved, None
    state = load_on_all_ranks(world, saved if world.rank == 0 else None)
    del saved  # the memory
    if state is not None:
        with mistakes_shared_by_all_ranks(world):
            trainer.load_state_dict(state)
        if config.spreads_model:
            from train.checkpoints.sharded import load_shards

            folder = Path(str(config.checkpoint_dir))
            path = checkpoint_path(folder, trainer.steps_done) if config.resume == "auto" else Path(config.resume)
            load_shards(world, path, model, trainer.step.optimizer)
    return trainer


def _sampler(config: TrainConfig, world: World, samples: Samples, least: int) -> ShardSampler:
    reader = config.reader(world.rank, world.world_size)
    return ShardSampler(len(samples), config.batch_size, *reader, config.seed, config.accumulate, least)


def _make_step(run: Run, model: nn.Module, wrapped: strategies.Wrapped) -> Step:
    optimizer = make_optimizer(run.config, model.parameters())
    if run.config.strategy == "pipeline":
        from train.loop.pipeline_step import PipelineStep
        from train.strategies.pipeline import Pipelined

        assert isinstance(wrapped, Pipelined)
        return PipelineStep(run, model, wrapped, optimizer)
    kind = HalvingStep if run.config.on_oom == "halve" else Step
    return kind(run, model, wrapped, optimizer)


def _micro_batch(config: TrainConfig, samples: Samples) -> Tensor:
    """Return one micro-batch of a pipeline's first stage, without content: the meta device has none."""
    tokens_or_pixels = torch.int64 if len(samples.shape) == 1 else torch.float32
    size = -(-config.batch_size // config.accumulate)
    return torch.empty((size, *samples.shape), dtype=tokens_or_pixels, device="meta")
