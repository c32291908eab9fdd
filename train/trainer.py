"""`python -m train`: a classifier of a config, trained, evaluated and exported by a Run."""

import atexit
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from train import datasets, models
from train.checkpoints.folder import on_host
from train.collectives.agreement import mistakes_shared_by_all_ranks
from train.collectives.sync_batchnorm import has_batchnorm
from train.config import TrainConfig
from train.data.sampler import ShardSampler
from train.data.shard import num_steps, share
from train.errors import UserError, naming_failures, refuse_without
from train.loop.losses import correct, losses_of_samples
from train.loop.optimizers import Ema, lr_of_step, make_optimizer, refuse_impossible_schedule
from train.records.metrics import weights_sha256
from train.records.observer import Observer
from train.records.progress import say
from train.run import Run
from train.world.environment import World
from train.world.process import Process

Batch = tuple[Tensor, Tensor]


class Trainer:
    """Trains and evaluates the model of a config; all ranks make one each and call the same methods.

    Making it is a collective: it loads data, model and checkpoint, and reports the start.
    Raises SharedError if any of them is missing, damaged or impossible.  `run.close()` ends what it holds open.
    """

    def __init__(self, config: TrainConfig, process: Process | None = None, observers: Iterable[Observer] = ()) -> None:
        self.config = config
        self.run = Run.of(config, process or Process(), observers)
        atexit.register(self.run.reading.close)  # without close(): multiprocessing would wait for the workers forever
        world = self.run.world
        datasets.download(config.dataset, config.data_root, world)
        with mistakes_shared_by_all_ranks():
            self.samples = datasets.load(config.dataset, config.data_root, "train", config.seed)
            self.validation = datasets.load(config.dataset, config.data_root, "validation", config.seed)
            torch.manual_seed(config.seed)
            model = models.build(config.model, self.samples.shape, self.samples.num_classes, config.dropout)
            self._steps_per_epoch = num_steps(len(self.samples), config.batch_size)
            refuse_single_samples(config, world, len(self.samples), model)
            refuse_impossible_schedule(config, self._steps_per_epoch)
            if world.rank == 0 and config.export is not None:
                refuse_impossible_export(config.export)
        # One micro-batch of a pipeline's first stage, without content: the meta device has none.
        tokens_or_pixels = torch.int64 if len(self.samples.shape) == 1 else torch.float32
        sizes = -(-config.batch_size // config.accumulate), *self.samples.shape
        self.model = self.run.wrap(model, torch.empty(sizes, dtype=tokens_or_pixels, device="meta"))
        wrapped = self.run.engine.models[0]
        # The bare model is evaluated: not every strategy's wrapper is made for it.
        self.module, self._predict = wrapped.module, wrapped.predict or wrapped.module
        self.optimizer = make_optimizer(config, self.module.parameters())
        self.ema = None if config.ema is None else Ema(self.module, config.ema)
        things = {"model": self.model, "optimizer": self.optimizer, "ema": self.ema}
        if config.evaluate_only:
            del things["optimizer"]
        self.run.restore(**{name: thing for name, thing in things.items() if thing is not None})
        self.train_batches()  # reports the start

    def train_batches(self) -> Iterable[Batch]:
        config = self.config
        return self.run.batches(
            self.samples, config.batch_size, micro_batches=config.accumulate, workers=config.workers
        )

    def fit(self) -> None:
        """Train until the last epoch or step, evaluate and save after each epoch, and export the weights if asked to.

        Raises Stopped if a signal has stopped all ranks; their position is then saved.
        """
        with self.run.loop.saved_after_failure():
            if self.config.evaluate_only:
                self.evaluate_only()
            else:
                self.train()
            if self.config.export is not None:
                self.export(self.config.export)

    def train(self) -> None:
        for _ in self.run.epochs(self.config.epochs):
            self.train_epoch()
            means = self.evaluate()
            self.run.record(**means)

    def train_epoch(self) -> None:
        """Run what is left of the epoch, up to max_steps.  Raises Stopped if a signal asks for it."""
        for batch in self.train_batches():
            lr = lr_of_step(self.config, self.run.position.steps, self._steps_per_epoch)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            result = self.run.step(self.loss, batch, self.optimizer, clip_norm=self.config.clip_norm)
            if self.ema is not None and result.skipped is None:
                self.ema.update()

    def evaluate_only(self) -> None:
        """Evaluate the loaded weights and report the result as an incident.  Raises Stopped if a signal asks for it."""
        means = self.evaluate()
        figures = f"validation loss {means['val_loss']:.4f}, accuracy {means['val_accuracy']:.2%}"
        self.run.records.incident(self.run.steps_done, "evaluation", f"{figures} of {len(self.validation)} samples")

    def evaluate(self) -> dict[str, float]:
        """Return val_loss and val_accuracy over the validation set.  Raises Stopped if a signal asks for it."""
        batch_size, workers, weights = self.config.batch_size, self.config.workers, self.evaluated_weights()
        return self.run.evaluate(
            self._measured, self.validation, batch_size, workers=workers, weights=weights, stoppable=True
        )

    def evaluated_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the weights to evaluate and export: the average, if there is one."""
        return nullcontext() if self.ema is None else self.ema.in_place_of_weights()

    def export(self, path: str) -> None:
        """Let rank 0 write the weights that were evaluated (the average, with --ema) to `path`.  A collective.

        Written under another name, then renamed, so the file is whole or absent.  An earlier one is replaced, because a
        resumed run exports again.
        """
        with self.evaluated_weights():
            state = self.run.engine.models[0].state_dict()
            if self.run.rank != 0:
                return
            # Imported here: only runs with --export need it.
            from safetensors.torch import save

            content = save({name: tensor.contiguous() for name, tensor in on_host(state).items()})
            weights = weights_sha256(state)
        beside = Path(f"{path}.unfinished")
        with naming_failures(f"--export: cannot write {path}"):
            replacing = ", replacing an earlier file" if Path(path).exists() else ""
            beside.write_bytes(content)
            beside.rename(path)
        say(f"exported the weights of step {self.run.position.steps} to {path} (weights_sha256 {weights}){replacing}")

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of each sample, (n,)."""
        inputs, targets = batch
        return losses_of_samples(self.model(inputs), targets, self.config.label_smoothing)

    def _measured(self, batch: Batch) -> dict[str, Tensor] | None:
        logits: Tensor | None = self._predict(batch[0])
        if logits is None:
            return None
        return {"val_loss": losses_of_samples(logits, batch[1]), "val_accuracy": correct(logits, batch[1])}


def refuse_single_samples(config: TrainConfig, world: World, num_samples: int, model: nn.Module) -> None:
    """Raise UserError if BatchNorm would be trained on one sample; the same for any world with --sync-batchnorm."""
    if not has_batchnorm(model) or config.evaluate_only:
        return
    apart = 1 if config.sync_batchnorm or config.logical_world else world.world_size
    parts = config.accumulate * (config.logical_world or 1)
    sampler = ShardSampler(num_samples, config.batch_size, 0, 1, config.seed, parts, least=2)
    for step in (0, len(sampler) - 1):
        if 1 in {len(share(part, rank, apart)) for part in sampler.parts(step) for rank in range(apart)}:
            raise UserError(
                f"BatchNorm cannot be trained on a single sample, but step {step + 1} of each epoch has "
                f"{len(sampler.stretch(step))} in {len(sampler.parts(step)) * apart} parts: choose another --batch-size"
            )


def refuse_impossible_export(path: str) -> None:
    """Raise UserError, before anything is trained, if the file could not be written at the end."""
    refuse_without("safetensors", "--export", "export")
    folder = Path(path).absolute().parent
    # In this order: is_dir raises an error if the path to the folder cannot be read.
    if not os.access(folder, os.W_OK | os.X_OK) or not folder.is_dir():
        raise UserError(f"--export: cannot write {path}: {folder} does not exist or is not a writable folder")
    if Path(path).is_dir():
        raise UserError(f"--export: cannot write {path}: it is a folder; name a file in it")
