"""Where a run stands: steps done, what is recorded and saved of them, and how it ends."""

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn, optim

from train import strategies
from train.checkpoints.folder import checkpoint_path
from train.checkpoints.same_run import misfit, other_data, refuse_other_run
from train.collectives import missing_ranks
from train.collectives.agreement import StopAgreement, Stopped, mistakes_shared_by_all_ranks, while_others_wait
from train.collectives.broadcast import broadcast_from_rank_0, thing_of_rank_0
from train.config import TrainConfig
from train.data.sampler import ShardSampler
from train.errors import SharedError, UserError, first_line
from train.loop import saving
from train.loop.exact_step import ExactStep
from train.loop.halving_step import HalvingStep
from train.loop.losses import Means, PendingLosses, WorthlessWeights, refuse_if_not_finite
from train.loop.nonfinite import NonFinite
from train.loop.step import Step
from train.loop.step_in_loop import StepInLoop
from train.loop.watchdog import Watchdog
from train.records import progress
from train.records.metrics import MetricsFile
from train.records.observer import Best, EpochRecord, Observer, RunEnd, StepRecord
from train.records.profile import Profile, profiles, without_effect
from train.records.tensorboard import TensorBoard
from train.world import placement
from train.world.environment import World
from train.world.signals import StopSignal


class Course:
    """The part of a session that counts steps, records and saves them, continues a checkpoint and stops on a signal.

    steps_done: of the run, over all its starts.  recorded_step: the one of the last epoch's record.
    engine: makes the steps.  files: what the run holds open, and the folders that it owns on rank 0.
    least: samples that a micro-batch needs.
    hash_of_data: returns the SHA-256 of the training data, which checkpoints keep; None in one's own loop.
    """

    def __init__(
        self,
        config: TrainConfig,
        world: World,
        stop: StopSignal,
        observers: Iterable[Observer] = (),
        settings: set[str] | None = None,
    ) -> None:
        self.config, self.world, self._settings = config, world, settings
        self.rank, self.world_size = world.rank, world.world_size
        with mistakes_shared_by_all_ranks():
            self.device = placement.pick_device(world, config.device)
        self._where = placement.where_ranks_are(world, self.device)
        group = placement.gradient_group(self.device, config.collective_timeout_s)
        self.context = strategies.Context(config, self.device, group, world.world_size)
        torch.manual_seed(config.seed)
        if config.strategy == "pipeline":
            from train.loop.pipeline_step import PipelineStep  # here, as torch takes a second to import what it needs

            self.engine: Step = PipelineStep(config, world, self.context)
        else:
            kind = ExactStep if config.logical_world else HalvingStep if config.on_oom == "halve" else Step
            self.engine = kind(config, world, self.context)
        self.observers: list[Observer] = list(observers)
        self.files = ExitStack()
        self._saving: saving.Saving | None = None
        self.steps_done = self.recorded_step = 0
        self.least = 1
        self.hash_of_data: Callable[[], str] | None = None
        self._data_sha256: str | None = None
        self.sampler: ShardSampler | None = None
        self._position: dict[str, int] | None = None  # of the loaded checkpoint, until there is a sampler
        self._things: dict[str, Any] = {}
        self._batches: Iterable[Any] = ()
        self._made_of: tuple[Any, ...] = ()
        self._evaluated: dict[tuple[Any, ...], tuple[Iterable[Any], list[list[int]]]] = {}
        self.best: Best | None = None
        self._means, self._pending = Means(), PendingLosses()
        self._stop_agreement = StopAgreement(stop)
        self._epoch_began: float | None = None  # in the loop over epochs, until the run has ended
        self._first_step = 1  # of this start
        self._loop: Callable[[], Generator[Any, None, None] | None] = lambda: None  # returns the last one over batches
        self._is_looping = True  # until the first loop over batches ends, and then inside of each
        self._step = StepInLoop()
        self._values: dict[str, Any] = {}
        self._trained_at = 0.0

    def report(self, kind: str, text: str) -> None:
        for observer in self.observers:
            observer.incident(self.steps_done, kind, text)

    def _report_unprofiled(self, last_step: int | None) -> None:
        if text := without_effect(self.config, self.world_size, self._first_step, last_step):
            self.report("not_profiled", text)
            self.observers = [each for each in self.observers if not isinstance(each, Profile)]
            self.config = self.config.model_copy(update={"profile": None})  # nor is it reported again

    def is_last_step(self) -> bool:
        return self.config.max_steps is not None and self.steps_done >= self.config.max_steps

    def has_all_steps(self) -> bool:
        """Return True if the last step is done and its epoch recorded."""
        return self.is_last_step() and self.recorded_step == self.steps_done

    def failed(self, error: Exception) -> None:
        """Tell the other ranks why this one ends, and save what can be saved."""
        missing_ranks.report_failure(error)
        if self._saving is not None and not isinstance(error, WorthlessWeights) and not self.engine.is_updating:
            saved = self.saving.save_after_failure(self.steps_done, self._state_of_last_step, self.device, error)
            if saved and (steps := self._pending.steps()):
                progress.say(f"the losses of steps {steps[0]} to {steps[-1]} were not yet recorded, and are lost")

    def _state_of_last_step(self) -> dict[str, Any]:
        self.engine.undo()
        return self.state_dict()

    def _open(self) -> None:
        config, world, is_rank_0 = self.config, self.world, self.rank == 0
        say: Callable[[str], None] = progress.say if is_rank_0 else lambda text: None
        # A training may be saving in the folder that is evaluated.
        saves_in = None if config.evaluate_only else config.checkpoint_dir
        folders = {"--run-dir": config.run_dir, "--checkpoint-dir": saves_in} if is_rank_0 else {}
        self.files.enter_context(while_others_wait(world, lambda: saving.own(folders, say)))
        content = saving.find(config, world, say)
        self._saving = saving.Saving(config, world, say)
        if saves_in is not None and not self._things:
            raise SharedError("checkpoint_dir is given, but run.restore() has not said what a checkpoint holds")
        with mistakes_shared_by_all_ranks():
            if is_rank_0 and config.evaluate_only and content is None:
                raise UserError(f"--evaluate-only: there is no checkpoint in {config.checkpoint_dir} to evaluate")
            # Progress comes first: batch scripts look for its last line, and the disk of the metrics may be full.
            observers: list[Observer] = [progress.Progress()] if is_rank_0 else []
            if config.run_dir is not None and is_rank_0:
                observers.append(self.files.enter_context(MetricsFile(config.run_dir)))
            if config.tensorboard and is_rank_0:
                observers.append(TensorBoard(str(config.run_dir), self.device))
            if config.profile is not None and profiles(config.profile_ranks, self.rank):
                observers.append(Profile(config.profile, str(config.run_dir), self.rank, self.device))
        if self.world_size > 1:
            observers.append(Watchdog(world, 0.95 * config.collective_timeout_s, lambda: self._is_looping))
        self.observers = [*observers, *self.observers]
        state = saving.load_on_all_ranks(world, content if is_rank_0 else None)
        del content  # the memory
        data = self.hash_of_data
        if data is not None and not config.evaluate_only and (self._saving.saves or state is not None):
            known = while_others_wait(world, lambda: data() if is_rank_0 else None)
            self._data_sha256 = thing_of_rank_0(known)
        if state is None:
            return
        with mistakes_shared_by_all_ranks():
            self.load_state_dict(state)
        if config.spreads_model:
            from train.checkpoints.sharded import load_shards

            folder = Path(str(config.checkpoint_dir))
            path = checkpoint_path(folder, state["step"]) if config.resume == "auto" else Path(config.resume)
            load_shards(world, path, self.engine.models[0].module, self._things["optimizer"])

    def _commit(self) -> bool:
        """Count the step whose batch was used, record it, and save or stop if it is time; return True at the end."""
        sampler, step = self.sampler, self._step
        assert sampler is not None
        step.refuse_left_gradient(wrapped.module for wrapped in self.engine.models)
        samples, own = len(sampler.stretch()), sum(map(len, sampler.shares()))
        self.steps_done += 1
        sampler.advance()
        self.engine.is_updating = self.engine.is_in_batch = False
        for kind, text in step.incidents:
            self.report(kind, text)
        if step.result is not None:
            given = sorted(step.values.items())  # ranks may have given them in different orders
            values = {name: torch.as_tensor(value, device=self.device) for name, value in given}
            known = {"epoch": sampler.epoch, "step": self.steps_done, "lr": step.lr, "samples": samples}
            self._pending.add(step.result, values, own, **known)
        stops = self._stop_agreement.reached()
        ends = len(sampler) == 0 or self.is_last_step()
        saves = self.config.checkpoint_every > 0 and self.steps_done % self.config.checkpoint_every == 0
        self._record_losses(now=stops or ends or saves)
        if stops:
            self._save_and_stop()
        if ends and self._means.samples == 0 and step.incidents:
            raise SharedError(f"every step of epoch {sampler.epoch} was skipped; the run ends here")
        if saves and not ends:
            self.save()
            self._pending.begin()
        return ends

    def _record_losses(self, now: bool) -> None:
        """Report a step to the observers, with the losses of all pending steps if `log_every` are pending or `now`."""
        known: list[StepRecord] = []
        if now or len(self._pending) == self.config.log_every:
            known = self._pending.reduce(self._means)
        finite = list(takewhile(lambda record: math.isfinite(record.loss), known))
        for observer in self.observers:
            observer.step_ended(self.steps_done, finite)
        for record in known[len(finite) :]:  # with --on-nonfinite=stop_late
            refuse_if_not_finite(record.loss, f"loss of step {record.step}")

    def _end_epoch(self, epoch: int, started: float, is_left: bool = False) -> None:
        sampler, now = self.sampler, time.monotonic()
        if sampler is None or (self._trained_at < started and not is_left):
            raise UserError("an epoch ended without a new loop over run.batches(): nothing was trained")
        if self._pending:  # the loop over batches was left by break
            self._record_losses(now=True)
        self.recorded_step, self.engine.is_updating = self.steps_done, False
        record = EpochRecord(
            epoch=epoch,
            step=self.steps_done,
            train_loss=self._means.loss if self._means.samples else None,
            samples=self._means.samples,
            samples_read=sampler.stretch(sampler.step - 1).stop,
            seconds=round(now - started, 3),
            train_seconds=round(max(self._trained_at - started, 0.0), 3),
            values={name: float(value) for name, value in self._values.items()},
        )
        accuracy = record.values.get("val_accuracy", 0.0)
        if "val_accuracy" in record.values and (self.best is None or accuracy > self.best.accuracy):
            self.best = Best(epoch, accuracy)
        for observer in self.observers:
            observer.epoch_ended(record)
        if len(sampler) == 0 or not (self.is_last_step() or is_left):
            sampler.set_epoch(epoch + 1)
            self._means = Means()
        self._stop_agreement.begin()
        if self._settings is not None and not is_left and self._stop_agreement.reached():  # see Session.evaluate()
            self._save_and_stop()
        self.save()

    def _save_and_stop(self) -> NoReturn:
        """Save where all ranks have stopped, and end together, because others fail if a rank ends early."""
        self.save()
        self.saving.wait_until_saved()
        self._end_run(None)
        raise Stopped

    def _end_run(self, weights: str | None) -> None:
        self._epoch_began = None
        saved = self.saving.saves
        end = RunEnd(self.sampler.epoch if self.sampler else 1, self.steps_done, saved, weights, self.best)
        for observer in self.observers:
            observer.run_ended(end)

    def save(self) -> None:
        """Let rank 0 save the state after the current step; do nothing without checkpoint_dir.  A collective."""
        if self.sampler is not None:  # an evaluation may be stopped before the training
            self.saving.save(self.steps_done, self.state_dict)

    @property
    def saving(self) -> saving.Saving:
        assert self._saving is not None
        return self._saving

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step depends on, and the config that led to it.  All ranks call it together."""
        assert self.sampler is not None
        things = dict(self._things)
        state: dict[str, Any] = {}
        if self.config.spreads_model:
            from train.checkpoints.sharded import shards  # here, as torch takes a second to import what it needs

            model = self.engine.models[0].module
            if self.context.ranks_have_own_buffers:  # any rank may write them, and rank 0's are evaluated
                broadcast_from_rank_0([*model.buffers()], self.context.group)
            del things["model"]
            state["shards"] = shards(model, things.pop("optimizer"))
        for name, thing in things.items():
            wrapped = self.engine.wrapped(thing)
            state[name] = thing.state_dict() if wrapped is None else wrapped.state_dict()
        return state | {
            "scaler": self.engine.scaler.state_dict(),
            **({"micro_batches": self.engine.micro_batches} if self.config.on_oom == "halve" else {}),
            **({"computes_on": self.engine.computes_on()} if isinstance(self.engine, ExactStep) else {}),
            **({"data_sha256": self._data_sha256} if self._data_sha256 else {}),
            "sampler": self.sampler.state_dict(),
            "step": self.steps_done,
            "evaluated_step": self.recorded_step,
            "epoch_means": vars(self._means),
            "best": self.best and vars(self.best),
            "config": self.config.model_dump(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was saved, on any number of processes.  To evaluate only, load the weights alone.

        Raises UserError if the state belongs to another run, or lacks or does not fit something that was named.
        """
        saved = dict(state["config"])
        if self._settings is not None:  # in one's own loop the sampler checks it, once there are batches
            saved["batch_size"] = self.config.batch_size
        refuse_other_run(saved, self.config)
        spread = {"model", "optimizer"} if self.config.spreads_model else set()
        if missing := sorted(self._things.keys() - state.keys() - spread):
            raise UserError(f"the checkpoint holds no {', '.join(missing)}, which run.restore() names")
        for name, thing in self._things.items():
            if name not in spread:
                wrapped = self.engine.wrapped(thing)
                target = thing if wrapped is None else wrapped.module
                try:
                    target.load_state_dict(state[name])
                except (RuntimeError, ValueError) as error:
                    if not isinstance(target, nn.Module | optim.Optimizer):
                        raise
                    raise UserError(misfit(name, state[name], target.state_dict(), first_line(error))) from None
        self.steps_done = state["step"]
        if self.config.evaluate_only:
            return
        self._position = state["sampler"]
        if self.sampler is not None:
            self.sampler.load_state_dict(self._position)
        self.engine.scaler.load_state_dict(state["scaler"])
        if self.config.on_oom == "halve":
            self.engine.micro_batches = max(self.engine.micro_batches, state.get("micro_batches", 1))
        if isinstance(self.engine, ExactStep):
            for difference in self.engine.go_on_from(state["computes_on"]):
                self.report("other_bits", difference)
        if text := other_data(state.get("data_sha256"), self._data_sha256, self.config, self.steps_done):
            self.report("other_data", text)
        self.recorded_step, self.saving.saved_step = state["evaluated_step"], self.steps_done
        self._means = Means(**state["epoch_means"])
        self.best = state["best"] and Best(**state["best"])
        if self.saving.checkpoints is not None and self.world.rank == 0:
            self.saving.checkpoints.set_aside_after(self.steps_done)

    def _in_loop(self, method: str) -> ShardSampler:
        """Return the position of the present batch.  Raises UserError outside of a loop over batches."""
        if not self._step.is_running or self.sampler is None:
            raise UserError(f"run.{method}() belongs into a loop over run.batches()")
        return self.sampler

    @contextmanager
    def _saved_if_not_finite(self) -> Iterator[None]:
        """Record and save what is complete if all ranks stop before a step."""
        try:
            yield
        except NonFinite:
            self._record_losses(now=True)  # all ranks are here, so the saved losses are complete
            if self.saving.saves and self.saving.saved_step < self.steps_done and not self.engine.is_updating:
                self.save()
                self.saving.wait_until_saved()
                self.saving.say_saved(self.steps_done)
            raise
        finally:
            self._step.splits = False
