"""A run of connected processes: models that they share, batches, steps, evaluations, records.

`python -m train` (train/loop/trainer.py) is written on it, and so is everybody's own loop (train/run.py).
"""

import time
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.utils.data import IterableDataset

from train import strategies
from train.checkpoints.same_run import already_ended
from train.collectives.agreement import Stopped, mistakes_shared_by_all_ranks
from train.collectives.broadcast import gather
from train.collectives.sync_batchnorm import SyncBatchNorm, has_batchnorm
from train.collectives.waiting import waiting_for_each
from train.data.batches import Batches
from train.data.reading import refuse_unreadable
from train.data.sampler import ShardSampler, evaluation_parts
from train.data.shard import share
from train.errors import SharedError, UserError
from train.loop import exact_step
from train.loop.course import Course
from train.loop.losses import evaluate
from train.loop.numerics import compile_model, seed
from train.loop.optimizers import num_steps_of_run
from train.loop.step import StepResult, Work
from train.loop.step_in_loop import StepInLoop
from train.records.metrics import start_record, weights_sha256
from train.records.observer import EpochRecord, StepRecord, own_names
from train.world import placement

# Names in a checkpoint that are the run's own.
_OWN_KEYS = {"scaler", "micro_batches", "sampler", "step", "evaluated_step", "epoch_means", "best", "config", "shards"}
_OWN_KEYS |= {"computes_on", "data_sha256"}


class Session(Course):
    """One run as a rank sees it; all ranks make one and call the same methods in the same order.

    config: the settings; those that name a model, a dataset or an optimizer do not count here.
    stop: notes whether this rank was asked to stop.
    observers: what follows the run on this rank, besides what the config asks for.
    settings: the names of the settings that the run has; they stand in its records.
    """

    def wrap(self, model: nn.Module, micro_batch: Tensor | None = None) -> nn.Module:
        """Return the model on this rank's device, with rank 0's weights, as the ranks train it together.

        Call it before the optimizer is made.  BatchNorm becomes synchronised BatchNorm unless sync_batchnorm is off.

        >>> model = run.wrap(torch.nn.Linear(3, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        """
        model = model.to(self.device)
        several = self.world_size > 1 or self.config.strategy == "fsdp"  # whose bf16 fits no other BatchNorm
        global_batchnorm = self.config.sync_batchnorm and several and has_batchnorm(model)
        if has_batchnorm(model):
            self.least = 2
        if self.config.sync_batchnorm and self.config.logical_world and has_batchnorm(model):
            raise SharedError(
                "--logical-world computes slice by slice, and synchronised BatchNorm all slices at once: add "
                "--no-sync-batchnorm (each slice is normalised by its own samples)"
            )
        if global_batchnorm:
            group, waits_s = self.context.group, self.config.collective_timeout_s
            own = placement.new_group(self.device, waits_s) if self.config.batchnorm_group == "own" else group
            model = SyncBatchNorm.convert_sync_batchnorm(model, own)
        if self.config.compile:
            compile_model(model, self.device)
        apart = any(part._buffers for part in model.modules() if not isinstance(part, SyncBatchNorm))
        own_buffers = self.world_size > 1 and apart and not self.config.logical_world
        context = replace(self.context, ranks_have_own_buffers=own_buffers, micro_batch=micro_batch)
        if self.config.logical_world:
            wrapped = exact_step.wrap(model, context)
        else:
            wrapped = strategies.wrap(self.config.strategy, model, context)
        self.context = replace(context, ranks_have_own_buffers=own_buffers or self.context.ranks_have_own_buffers)
        self.engine.add(wrapped)
        return wrapped.call

    def restore(self, **things: Any) -> None:
        """Name what a checkpoint holds, and load the one that `resume` asks for, if there is one.  A collective.

        things: models, optimizers, schedulers and whatever else has state_dict() and load_state_dict().
        Raises SharedError if the checkpoint is damaged or belongs to another run.
        """
        if self._saving is not None:
            raise UserError("run.restore() was called twice, or after run.epochs(): name everything in one call")
        if wrong := sorted(things.keys() & _OWN_KEYS):
            raise UserError(f"run.restore(): {', '.join(wrong)} is a name that the run itself uses: choose another one")
        if self.config.spreads_model and {"model", "optimizer"} - things.keys():
            raise UserError("with fsdp, run.restore() needs one model and one optimizer, as model= and optimizer=")
        self._things = things
        self._open()

    def epochs(self, number: int) -> Iterator[int]:
        """Yield the number of each epoch that is left, from 1 to `number`; record and save at the end of each.

        >>> for epoch in run.epochs(5):
        ...     for batch in run.batches(dataset, batch_size=4):
        ...         result = run.step(loss, batch, optimizer)
        ...     run.record(**run.evaluate(lambda batch: {"val_loss": loss(batch)}, dataset, batch_size=4))
        """
        self.config = self.config.model_copy(update={"epochs": number})
        if self._saving is None:
            self._open()
        first = self.sampler.epoch if self.sampler is not None else (self._position or {"epoch": 1})["epoch"]
        if reached := [*["--epochs"] * (first > number), *["--max-steps"] * self.has_all_steps()]:
            self.report("already_ended", already_ended(self.config, reached))
        for epoch in range(first, number + 1):
            if self.has_all_steps():
                break
            self._values, self._epoch_began = {}, time.monotonic()
            yield epoch
            if self._epoch_began is None:  # run.end() was called
                return
            self._leave_loop()
            self._end_epoch(epoch, self._epoch_began)
        self._finish()

    def end(self) -> None:
        """Record and save what the epoch has so far, and end the run before its last epoch.  A collective.

        Then leave the loop by `break`.  A batch that a step has used counts; a restart continues at the next sample.
        """
        if self._epoch_began is None:
            raise UserError("run.end() belongs into the loop over run.epochs()")
        self._leave_loop()
        if self.engine.is_updating:
            self._commit()
        if self.sampler is not None and self.sampler.step:
            self._end_epoch(self.sampler.epoch, self._epoch_began, is_left=True)
        self._finish()

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
            workers: processes that read ahead.
        A rank for which a short batch has no sample left gets samples that run.step() and run.evaluate() do not count.
        Raises SharedError for fewer samples than ranks in a batch, and for another dataset than at the checkpoint.

        >>> for inputs, targets in run.batches(dataset, batch_size=4):
        ...     break
        """
        made_of = (dataset, batch_size, micro_batches, collate, workers)
        key = (_identity(dataset), *made_of[1:])
        if key != self._made_of:
            self._make_batches(*made_of)
            self._made_of = key
        loop = self._steps()
        self._loop = weakref.ref(loop)  # so that `break` ends it
        return loop

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
        position = self._in_loop("step")
        self._step.splits = split
        with self._saved_if_not_finite():
            result = self.engine.run(Work(batch, optimizer, position, function, clip_norm, split))
        self._step.note(result, optimizer)
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
        self._step.losses = self.engine.backward(loss, weight, self._in_loop("backward"))

    def apply(
        self, optimizer: optim.Optimizer, *, clip_norm: float | None = None, closure: Callable[[], Any] | None = None
    ) -> StepResult:
        """Let the optimizer use p.grad, if it is finite, and empty it.  A collective.

        closure: for optimizers such as LBFGS: empties p.grad, calls run.backward() and returns the loss, a number that
            all ranks share: run.mean(loss).
        """
        if self.config.logical_world:
            raise UserError("run.apply() cannot be used with logical_world: backward() has no slices; use run.step()")
        position = self._in_loop("apply")
        nothing = torch.zeros((), dtype=torch.float64, device=self.device)
        losses = self._step.losses or StepResult(nothing.expand(0), nothing, 0, 0)
        with self._saved_if_not_finite():
            work = Work(self._step.batch, optimizer, position, clip_norm=clip_norm, closure=closure)
            result = self.engine.update(work, losses)
            if closure is not None and self._step.losses is not None:
                result = replace(self._step.losses, grad_norm=result.grad_norm, skipped=result.skipped)
        self._step.note(result, optimizer)
        return result

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all ranks in the order of the global batch; gradients flow back to their ranks.

        rows: (n, …), one for each sample of this rank's share.  A collective.  For run.step(…, split=False).
        """
        if self.config.logical_world:
            raise UserError("run.gather() cannot be used with logical_world, which computes slice by slice")
        parts = self._in_loop("gather").parts()
        if self._step.splits and (self.engine.micro_batches > 1 or self.config.on_oom == "halve"):
            raise UserError(
                "run.gather() needs the whole batch, and run.step() cuts it: give it split=False, without on_oom"
            )
        sizes = [sum(len(share(part, rank, self.world_size)) for part in parts) for rank in range(self.world_size)]
        return gather(rows[: sizes[self.rank]], sizes, self.context.group)

    def evaluate(
        self,
        function: Callable[[Any], Mapping[str, Any] | None],
        dataset: Any,
        batch_size: int,
        *,
        collate: Callable[[list[Any]], Any] | None = None,
        workers: int = 0,
        weights: AbstractContextManager[Any] | None = None,
    ) -> dict[str, float]:
        """Return means over a dataset, each sample once, the same on every rank.  A collective.

        function: returns for a batch {name: value}; a value is like what the function of run.step() returns.
        weights: a context in which the models have other weights, such as averages; a signal saves after its end.

        >>> run.evaluate(lambda batch: {"val_loss": loss(batch)}, dataset, batch_size=4).keys()
        dict_keys(['val_loss'])
        """
        key = (_identity(dataset), batch_size, collate, workers)
        if key not in self._evaluated:  # samples in memory stay
            refuse_unreadable(dataset, workers, self.config.seed, self.world)
            rank, ranks = self.config.reader(self.rank, self.world_size)
            steps, sizes = evaluation_parts(len(dataset), batch_size, rank, ranks, self.config.logical_world or ranks)
            self._evaluated[key] = self._loaded(dataset, steps, collate, workers), sizes
        modules = [wrapped.module for wrapped in self.engine.models]
        batches = zip(*self._evaluated[key], strict=True)
        # Not within a step, nor after a `break`: its update is in the weights, but it is not counted.  Nor in an epoch
        # of one's own loop, whose scheduler may have made a step that it would make again: there the epoch ends first.
        in_own_loop = self._settings is not None and self._epoch_began is not None
        waits = in_own_loop or self._step.is_running or self.engine.is_updating
        stop_agreement = None if waits else self._stop_agreement
        with weights or nullcontext(), suppress(Stopped):  # so `weights` ends without an error, also without `finally`
            return evaluate(function, batches, modules, self.context, stop_agreement)
        self._save_and_stop()

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
        if self._epoch_began is None and not self._step.is_running:
            raise UserError("run.record() belongs into the loop over run.epochs()")
        record = StepRecord if self._step.is_running else EpochRecord
        if wrong := sorted(values.keys() & own_names(record)):
            raise UserError(f"run.record(): {', '.join(wrong)} is a name that the record uses: choose another one")
        # As they are now: the loop may change a tensor in place.
        now = {name: x.detach().clone() if isinstance(x, Tensor) else x for name, x in values.items()}
        (self._step.values if self._step.is_running else self._values).update(now)

    # What follows is called by the methods above only.

    def _leave_loop(self) -> None:
        if (loop := self._loop()) is not None:  # a variable holds it after a `break`
            loop.close()

    def _finish(self) -> None:
        states = [wrapped.state_dict() for wrapped in self.engine.models]
        named = {f"{at}.{name}": tensor for at, state in enumerate(states) for name, tensor in state.items()}
        self._end_run(weights_sha256(states[0] if len(states) == 1 else named))
        self.saving.wait_until_saved()

    def _make_batches(self, dataset: Any, batch_size: int, micro_batches: int, *how: Any) -> None:
        refuse_unreadable(dataset, how[1], self.config.seed, self.world)
        if self._saving is None:
            self._open()
        config = self.config.model_copy(update={"batch_size": batch_size, "accumulate": micro_batches})
        placement.refuse_impossible(config, self.world, self.device)
        reader = config.reader(self.rank, self.world_size)
        parts, whole = micro_batches * (config.logical_world or 1), bool(config.logical_world)
        in_order = isinstance(dataset, IterableDataset)
        sampler = ShardSampler(len(dataset), batch_size, *reader, config.seed, parts, self.least, whole, in_order)
        if self.sampler is not None:
            if changed := sampler.changed_since(self.sampler.state_dict()):
                raise UserError(
                    f"run.batches(): {changed}, but a run counts the steps of one training set. Join several into one "
                    "dataset; run.evaluate() reads others"
                )
            sampler.load_state_dict(self.sampler.state_dict())
        if self._position is not None:
            with mistakes_shared_by_all_ranks():
                sampler.load_state_dict(self._position)
            self._position = None
        is_first = self.sampler is None
        self.config, self.sampler = config, sampler
        self.engine.micro_batches = max(micro_batches, self.engine.micro_batches)
        self._batches = self._loaded(dataset, sampler, *how)
        if is_first:
            record = start_record(config, self.world, self.device, self._where, sampler, self._settings)
            for observer in self.observers:
                observer.run_started(record)
            self._first_step = self.steps_done + 1
            last_step = config.max_steps  # one's own loop may call epochs() again
            if self._settings is None:
                last_step = num_steps_of_run(config, record["arithmetic"]["steps_per_epoch"])
            if last_step is None or self.steps_done < last_step:  # else epochs() reports that nothing is trained
                self._report_unprofiled(last_step)

    def _loaded(self, dataset: Any, steps: Iterable[list[int]], collate: Any, workers: int) -> Batches:
        return Batches(dataset, steps, self.device, self.config.input, workers, self.world.local_world_size, collate)

    def _steps(self) -> Generator[Any, None, None]:
        assert self.sampler is not None
        self._stop_agreement.begin()
        self._pending.begin()
        self._is_looping, step = True, self._step
        try:
            # A run that was stopped after its last step, in the evaluation, has no steps left.
            for batch in () if self.is_last_step() else waiting_for_each(self._batches):
                seed(self.device, self.config.seed, self.sampler.epoch, self.sampler.step, self.rank)
                self.engine.begin_batch()
                self._step = step = StepInLoop(batch, is_running=True)
                yield batch
                if step is not self._step:
                    raise UserError("run.batches(): another loop over batches has begun; a run has one training set")
                if self._commit():
                    break
        finally:
            if step is self._step:
                self._step.is_running = False
                self._trained_at = time.monotonic()
                self._is_looping = False


def _identity(dataset: Any) -> tuple[int, int | None]:
    """Return what tells a dataset from others, and from itself before it has grown."""
    return id(dataset), len(dataset) if hasattr(dataset, "__len__") else None
