"""python -m train: config → world → data, model → strategy → Trainer.fit().

Run it by itself (one process), or let torchrun or a Slurm step start one for each device:

    python -m train --model mnist_cnn --dataset mnist --epochs 14
    torchrun --standalone --nproc-per-node 2 -m train --model resnet18 --dataset fashion_mnist
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from train.attempt import Attempt
from train.config import TrainConfig
from train.errors import SharedError, UserError
from train.flags import from_argv
from train.stop import EXIT_STOPPED, StopSignal, stop_with_parent
from train.world import World


def main(argv: list[str] | None = None) -> int:
    """Train; 0 at the end, 1 after a mistake that is the user's, told in one paragraph, 143 if a signal stopped it."""
    stop = StopSignal()
    # torchrun ends the other processes as soon as one has failed: let each see and count its own mistake first.
    stop.listen()
    try:
        config = from_argv(argv)
        world = World.detect(os.environ)
        stop.let_through()  # until the processes have met there is nothing to save and nobody to agree with
        if world.launcher == "torchrun":
            stop_with_parent()
        return 0 if run(config, world, stop) else EXIT_STOPPED
    except UserError as error:
        first_of_node = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) == "0"
        if first_of_node or not isinstance(error, SharedError):
            print(f"error: {error}", file=sys.stderr, flush=True)
        return 1


def run(config: TrainConfig, world: World, stop: StopSignal) -> bool:
    """One training run, from connecting the processes to the last record; False if a signal stopped it before."""
    attempt = Attempt(world)
    # Imported here: torch takes seconds, and a wrong flag should not.
    import torch

    from train import datasets, models, process_group, report, strategies
    from train.checkpoint import Checkpoints, find_checkpoint, load_on_all_ranks
    from train.input import Batches
    from train.memory import keep_freed_memory
    from train.metrics import MetricsFile
    from train.optimizers import make_optimizer
    from train.progress import say
    from train.sampler import ShardSampler, evaluation_steps
    from train.sync_batchnorm import convert_sync_batchnorm, has_batchnorm
    from train.trainer import Trainer

    keep_freed_memory()
    # Numbers below 1e-38 take a processor a hundred times as long as others, and averages that decay end up there.
    torch.set_flush_denormal(True)
    leads = world.rank == 0
    tell = say if leads else lambda text: None

    with process_group.open_process_group(world, attempt, config.rendezvous_timeout_s, config.resolve_timeout_s):
        stop.listen()
        datasets.download(config.dataset, config.data_root, world)
        with process_group.shared_mistakes(world):
            device = process_group.pick_device(world, config.device)
            report.refuse_impossible(config, world, device)
            samples = datasets.load(config.dataset, config.data_root, "train", config.seed)
            validation = datasets.load(config.dataset, config.data_root, "validation", config.seed)
            torch.manual_seed(config.seed)
            model = models.build(config.model, samples.shape, samples.num_classes, config.dropout).to(device)
            folder = Path(config.checkpoint_dir) if config.checkpoint_dir else None
            saved = find_checkpoint(config.resume, folder, tell) if leads else None
            checkpoints = Checkpoints(folder, config.keep_checkpoints) if leads and folder else None
            metrics = MetricsFile(config.run_dir if leads else None)

        where = process_group.where_ranks_are(world, device)
        numbers = report.arithmetic(config, world, len(samples))
        tell("\n".join([*where, report.in_words(numbers)]))
        metrics.write("start", **report.start_record(config, world, device, where, numbers))

        group = process_group.gradient_group(device, config.rendezvous_timeout_s)
        synchronised = config.sync_batchnorm and world.world_size > 1 and has_batchnorm(model)
        if synchronised:
            model = convert_sync_batchnorm(model, device, group)
        differ = world.world_size > 1 and not synchronised
        setting = strategies.Setting(
            device, group, world.world_size, config.bucket_mib, buffers_differ=differ, sync=config.sync
        )
        wrapped = strategies.wrap(config.strategy, model, setting)

        sampler = ShardSampler(len(samples), config.batch_size, world.rank, world.world_size, config.seed)
        evaluated = evaluation_steps(len(validation), config.batch_size, world.rank, world.world_size)
        source = (config.input, config.workers, world.local_world_size)
        trainer = Trainer(
            config,
            world,
            setting,
            model,
            wrapped,
            make_optimizer(config, model.parameters()),
            sampler,
            Batches(samples, sampler, device, *source),
            Batches(validation, evaluated, device, *source),
            metrics,
            checkpoints,
            stop,
        )
        state = load_on_all_ranks(saved)
        if state is not None:
            with process_group.shared_mistakes(world):
                trainer.load_state_dict(state)
        with metrics:
            return trainer.fit()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # At once: neither a thread that waits for a foreign server nor the other ranks' connections may hold it up, and one
    # of gloo's that still lets go of a tensor while Python is taken down aborts the process (docs/own-script.md).
    os._exit(code)
