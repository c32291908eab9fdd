"""Run: a training run in one's own loop, on any number of processes; `python -m train` is written on it, too."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim

from train.collectives.agreement import StopAgreement, Stopped, mistakes_shared_by_all_ranks
from train.collectives.broadcast import gather
from train.collectives.sync_batchnorm import has_batchnorm
from train.config import OF_A_CLASSIFIER, TrainConfig
from train.errors import UserError
from train.flags import checked
from train.loop import engines
from train.loop.batch_loop import BatchLoop
from train.loop.evaluation import evaluate
from train.loop.numerics import set_numerics
from train.loop.position import Position
from train.loop.program import Program
from train.loop.reading import Reading
from train.loop.records import Records
from train.loop.saving import OWN_KEYS, Saving
from train.loop.step import StepResult, Work
from train.records.observer import Observer
from train.world import placement
from train.world.process import Process
from train.world.rendezvous import open_process_group

_RECORDED = {*TrainConfig.model_fields} - OF_A_CLASSIFIER | {"epochs", "batch_size", "accumulate"}


class Run:
    """A training run in your own loop: the same numbers on any number of processes, and after any interruption.

    Start the program by torchrun, `srun` or alone.  All processes run the same lines:

    >>> import torch
    >>> from train import Run
    >>> run = Run(seed=1)
    >>> model = run.wrap(torch.nn.Linear(3, 1))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> run.restore(model=model, optimizer=optimizer)
    >>> points = torch.randn(10, 3)
    >>> dataset = torch.utils.data.TensorDataset(points, points.sum(dim=1, keepdim=True))
    >>> def loss(batch):
    ...     return torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    >>> for epoch in run.epochs(3):
    ...     for batch in run.batches(dataset, batch_size=4):
    ...         result = run.step(loss, batch, optimizer)

    Asking for the next batch counts the step, records it in RUN_DIR/metrics.jsonl, saves when that is due, and after
    SIGTERM, SIGUSR1 or Ctrl-C saves and ends all processes together, with exit code 143.  An uncaught error is reported
    with the ranks that are missing, and rank 0 saves the last complete step.

    Args:
        settings: those of `python -m train --help` that do not choose a model, data or an optimizer, such as seed,
            strategy (any but pipeline), precision, max_steps, checkpoint_dir, checkpoint_every, resume and run_dir.
    Raises UserError if a setting is wrong or the processes cannot be connected.
    """

    def __init__(self, **settings: Any) -> None:
        with Program() as program:
            given = {name: os.fspath(x) if isinstance(x, os.PathLike) else x for name, x in settings.items()}
            if wrong := sorted(given.keys() & OF_A_CLASSIFIER):
                names = ", ".join(wrong)
                raise UserError(f"{names}: only `python -m train` has this setting; your own loop decides it")
            config = checked(given, str, [])
            if config.strategy == "pipeline":
                raise UserError("strategy is pipeline, which only `python -m train` can use")
            self._begin(config, Process(), (), _RECORDED)
            program.has(self.loop, self.close)

    @classmethod
    def of(cls, config: TrainConfig, process: Process, observers: Iterable[Observer] = ()) -> "Run":
        """Return the run of `python -m train`, with all settings; its processes may be connected already."""
        run = cls.__new__(cls)
        run._begin(config, process, observers, {*TrainConfig.model_fields})
        return run

    def _begin(self, config: TrainConfig, process: Process, observers: Iterable[Observer], recorded: set[str]) -> None:
        self.world, self._connection = process.world, ExitStack()
        if not dist.is_initialized():
            set_numerics(config)
            self._connection.enter_context(open_process_group(self.world, process.attempt, config))
            process.stop.listen(answers=self.world.rank == 0)
        with mistakes_shared_by_all_ranks():
            self.device = placement.pick_device(self.world, config.device)
        self.records = Records(config, self.world, self.device, observers, recorded)
        torch.manual_seed(config.seed)
        self.engine, self.position = engines.make_engine(config, self.world, self.device), Position(config.max_steps)
        self.saving = Saving(config, self.world, self.engine, self.position, self.records)
        self.reading, stop = Reading(config, self.world, self.device), StopAgreement(process.stop)
        self.loop = BatchLoop(self.engine, self.reading, self.position, self.records, self.saving, stop)

    @property
    def config(self) -> TrainConfig:
        return self.saving.config

    @property
    def rank(self) -> int:
        return self.world.rank

    @property
    def steps_done(self) -> int:
        """Optimizer steps over all starts of the run."""
        return self.position.steps

    def wrap(self, model: nn.Module, micro_batch: Tensor | None = None) -> nn.Module:
        """Return the model on this rank's device, with rank 0's weights, as the ranks train it together.

        Call it before the optimizer is made.  BatchNorm becomes synchronised BatchNorm unless sync_batchnorm is off.

        >>> model = run.wrap(torch.nn.Linear(3, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        """
        if has_batchnorm(model):
            self.reading.least = 2
        return engines.wrap(self.engine, model, micro_batch).call

    def restore(self, **things: Any) -> None:
        """Name what a checkpoint holds, and load the one that `resume` asks for, if there is one.  A collective.

        things: models, optimizers, schedulers and whatever else has state_dict() and load_state_dict().
        Raises SharedError if the checkpoint is damaged or belongs to another run.
        """
        if self.saving.is_open:
            raise UserError("run.restore() was called twice, or after run.epochs(): name everything in one call")
        if wrong := sorted(things.keys() & OWN_KEYS):
            raise UserError(f"run.restore(): {', '.join(wrong)} is a name that the run itself uses: choose another one")
        self.saving.open(things, self.loop.expects_step)

    def epochs(self, number: int) -> Iterator[int]:
        """Yield the number of each epoch that is left, from 1 to `number`; record and save at the end of each.

        >>> for epoch in run.epochs(5):
        ...     for batch in run.batches(dataset, batch_size=4):
        ...         result = run.step(loss, batch, optimizer)
        ...     run.record(**run.evaluate(lambda batch: {"val_loss": loss(batch)}, dataset, batch_size=4))
        """
        self.saving.config = self.config.model_copy(update={"epochs": number})
        if not self.saving.is_open:
            self.saving.open({}, self.loop.expects_step)
        return self.loop.epochs(number)

    def end(self) -> None:
        """Record and save what the epoch has so far, and end the run before its last epoch.  A collective.

        Then leave the loop by `break`.  A batch that a step has used counts; a restart continues at the next sample.
        """
        if self.records.epoch_began is None:
            raise UserError("run.end() belongs into the loop over run.epochs()")
        self.loop.end()

    def batches(
        self,
        dataset: Any,
        batch_size: int,
        *,
        micro_batches: int = 1,
        collate: Callable[[list[Any]], Any] | None = None,
        workers: int = 0,
    ) -> Iterator[Any]:
        """Return an iterator over this rank's share of each batch that is left of the epoch, on its device.

        An epoch reads each sample once, in an order that depends on the seed and the epoch alone.  Asking for the next
        batch ends the step: it is counted, recorded, saved when that is due, and the run stops here if a signal has
        asked for it.  A batch that is left by `break` is not counted.

        Args:
            dataset: any map-style dataset.  What it draws at random depends on seed, epoch and index alone.  Or an
                IterableDataset with len(): all ranks read all of it, in its own order, and keep their samples.
            batch_size: samples of one step over all ranks together.
            micro_batches: into how many parts run.step() cuts a batch, to save memory.
            collate: makes a batch of a list of samples: tensors with one row a sample, in dicts, lists or tuples.
            workers: processes that read ahead, forked from this one.
        A rank for which a short batch has no sample left gets samples that run.step() and run.evaluate() do not count.
        Raises SharedError for fewer samples than ranks in a batch, and for another dataset than at the checkpoint.

        >>> for inputs, targets in run.batches(dataset, batch_size=4):
        ...     break
        """
        if not self.saving.is_open:
            self.saving.open({}, self.loop.expects_step)
        config = self.config.model_copy(update={"batch_size": batch_size, "accumulate": micro_batches})
        placement.refuse_impossible(config, self.world, self.device)
        sampler = self.reading.sampler(dataset, batch_size, micro_batches, collate, workers)
        if sampler is not None:
            self.loop.read_by(sampler, config)
        return self.loop.begin()

    def step(
        self,
        function: Callable[[Any], Any],
        batch: Any,
        optimizer: optim.Optimizer,
        *,
        clip_norm: float | None = None,
        split: bool = True,
    ) -> StepResult:
        """Train one step: the optimizer gets the gradient of the loss over the global batch.  A collective.

        Args:
            function: returns for a batch, or a part of it, the mean loss over its samples, the loss of each, (n,), or
                (sum, weight), whose sums over all ranks are divided.  It may be called several times.
            optimizer: only its parameters get gradients; their models must come from run.wrap().
            clip_norm: scale the gradient down to this norm if its norm is larger.
            split: False calls the function once, with the whole share, and takes the mean of what the ranks return:
                for losses that need the whole batch, which run.gather() collects.
        Returns what is known of the step; `result.skipped` says why the optimizer was not used, or is None.

        >>> for batch in run.batches(dataset, batch_size=4):
        ...     result = run.step(lambda b: torch.nn.functional.mse_loss(model(b[0]), b[1]), batch, optimizer)
        ...     break
        """
        present, sampler = self.loop.held_by("step")
        present.splits = split
        with self.loop.saved_if_not_finite():
            result = self.engine.run(Work(batch, optimizer, sampler, function, clip_norm, split))
        present.note(result, optimizer)
        return result

    def backward(self, loss: Tensor, weight: float | None = None) -> None:
        """Add the gradients of a step by hand: after it, p.grad has the mean over the global batch.  A collective.

        loss: the mean over this rank's samples, or over `weight` things if that is given.

        >>> for batch in run.batches(dataset, batch_size=4):
        ...     run.backward(loss(batch))
        ...     result = run.apply(optimizer)
        ...     break
        """
        if self.rank == 0 and self.config.precision in ("bf16", "fp16"):
            text = f"precision={self.config.precision}: a forward of your own is float32 outside of torch.autocast"
            warnings.warn(text, stacklevel=2)  # once for each place
        present, sampler = self.loop.held_by("backward")
        present.keep(self.engine.backward(loss, weight, sampler))

    def apply(
        self, optimizer: optim.Optimizer, *, clip_norm: float | None = None, closure: Callable[[], Any] | None = None
    ) -> StepResult:
        """Let the optimizer use p.grad, if it is finite, and empty it.  A collective.

        closure: for optimizers such as LBFGS: empties p.grad, calls run.backward() and returns the loss, a number that
            all ranks share: run.mean(loss).
        """
        if self.config.logical_world:
            raise UserError("run.apply() cannot be used with logical_world: backward() has no slices; use run.step()")
        present, sampler = self.loop.held_by("apply")
        nothing = torch.zeros((), dtype=torch.float64, device=self.device)
        losses = present.by_hand or StepResult(nothing.expand(0), nothing, 0, 0)
        with self.loop.saved_if_not_finite():
            work = Work(present.batch, optimizer, sampler, clip_norm=clip_norm, closure=closure)
            result = self.engine.update(work, losses)
            if closure is not None and present.by_hand is not None:
                skipped = result.skipped or present.by_hand.skipped
                result = replace(present.by_hand, grad_norm=result.grad_norm, skipped=skipped)
        present.note(result, optimizer)
        return result

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all ranks in the order of the global batch; gradients flow back to their ranks.

        rows: (n, …), one for each sample of this rank's share.  A collective.  For run.step(…, split=False).
        """
        if self.config.logical_world:
            raise UserError("run.gather() cannot be used with logical_world, which computes slice by slice")
        present, sampler = self.loop.held_by("gather")
        if present.splits and (self.engine.micro_batches > 1 or self.config.on_oom == "halve"):
            raise UserError("run.gather() needs the whole batch, and run.step() cuts it: give split=False, no on_oom")
        sizes = [sum(map(len, sampler.shares(rank=rank))) for rank in range(self.world.world_size)]
        return gather(rows[: sizes[self.rank]], sizes, self.engine.context.group)

    def evaluate(
        self,
        function: Callable[[Any], Mapping[str, Any] | None],
        dataset: Any,
        batch_size: int,
        *,
        collate: Callable[[list[Any]], Any] | None = None,
        workers: int = 0,
        metrics: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
        weights: AbstractContextManager[Any] | None = None,
        stoppable: bool = False,
    ) -> dict[str, float]:
        """Return means over a dataset, each sample once, the same on every rank.  A collective.

        function: returns for a batch {name: value}; a value is like what the function of run.step() returns.
        metrics: makes {name: number} of {name: all rows in the dataset's order}; then a value is (n, …) or a list of n.
        weights: a context in which the models have other weights, such as averages; a signal saves after its end.
        stoppable: a signal may stop the run in this evaluation of an epoch; a restart does again what the loop does
            after the epoch's batches.  Without it the epoch ends first.

        >>> run.evaluate(lambda batch: {"val_loss": loss(batch)}, dataset, batch_size=4).keys()
        dict_keys(['val_loss'])
        """
        batches = self.reading.evaluation(dataset, batch_size, collate, workers)
        modules = [wrapped.module for wrapped in self.engine.models]
        stop = self.loop.stop if self.loop.may_stop(stoppable) else None
        with self.loop.evaluating(), weights or nullcontext(), suppress(Stopped):  # so `weights` ends without an error
            return evaluate(function, batches, modules, self.engine.context, stop, metrics)
        self.loop.save_and_stop()

    def mean(self, value: Tensor | float, weight: float = 1.0) -> float:
        """Return the mean of a number over the ranks, each counted `weight` times.  A collective.

        >>> run.mean(3.0)
        3.0
        """
        sums = torch.tensor([float(value) * weight, weight], dtype=torch.float64)
        dist.all_reduce(sums)
        return float(sums[0] / sums[1])

    def record(self, **values: Tensor | float) -> None:
        """Add values to the record of the step, or, outside of a loop over batches, of the epoch.

        In a step, the mean over the ranks' samples is recorded; call it on all ranks.  Of an epoch, rank 0's are.
        """
        self.records.add(values, self.loop.present)

    def close(self) -> None:
        """End the workers, close the files and, unless the run has failed, leave the other processes."""
        self.reading.close()
        self.saving.files.close()
        self._connection.close()
