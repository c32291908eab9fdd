"""The loop over batches: gives each batch out, and counts its step when the next one is asked for."""

import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from train.checkpoints.same_run import already_ended
from train.collectives import missing_ranks
from train.collectives.agreement import StopAgreement, Stopped
from train.collectives.waiting import waiting_for_each
from train.config import TrainConfig
from train.data.sampler import ShardSampler
from train.errors import UserError
from train.loop.nonfinite import NonFinite
from train.loop.numerics import seed
from train.loop.position import Position
from train.loop.reading import Reading, refuse_wrong_counts
from train.loop.records import Present, Records
from train.loop.saving import Saving
from train.loop.step import Phase, Step
from train.records.metrics import weights_sha256
from train.records.progress import say


class BatchLoop:
    """Moves a run on, batch by batch and epoch by epoch; what is done with a batch is not its business.

    present: the batch that was given out last, and what is known of it.
    on_stop: is called once a signal has stopped the run.
    """

    def __init__(
        self, engine: Step, reading: Reading, position: Position, records: Records, saving: Saving, stop: StopAgreement
    ) -> None:
        self.engine, self.reading, self.position = engine, reading, position
        self.records, self.saving, self.stop = records, saving, stop
        self.present = Present()
        self.on_stop: Callable[[], object] = lambda: None
        self._last: Callable[[], Generator[Any, None, None] | None] = lambda: None

    def epochs(self, number: int) -> Iterator[int]:
        """Yield the number of each epoch that is left; record and save at the end of each, and end the run."""
        refuse_wrong_counts("epochs", number=number)
        position, records, config = self.position, self.records, self.saving.config
        first = position.epoch
        if reached := [*["epochs"] * (first > number), *["max_steps"] * position.has_all_steps()]:
            records.incident(position.steps, "already_ended", already_ended(config, reached))
        for epoch in range(first, number + 1):
            if position.has_all_steps():
                break
            records.begin_epoch()
            yield epoch
            if records.epoch_began is None:  # end() was called
                return
            self.leave()
            self.end_epoch()
        self.finish()

    def end(self) -> None:
        """Record and save what the epoch has so far, and end the run; a batch that a step has used counts."""
        self.leave()
        if self.engine.is_updating:
            self.commit()
        if self.position.sampler is not None and self.position.sampler.step:
            self.end_epoch(is_left=True)
        self.finish()

    def read_by(self, sampler: ShardSampler, config: TrainConfig) -> None:
        """Read by this sampler from here on, and report the start of the run if it is the first.  A collective."""
        self.saving.config, is_first = config, self.position.sampler is None
        try:
            self.position.follow(sampler)
        except UserError:
            self.reading.forget()
            raise
        self.engine.micro_batches = max(config.accumulate, self.engine.micro_batches)
        if is_first:
            self.saving.refuse_unnamed_scheduler()
            self.records.started(config, sampler)
            if idle := [str(rank) for rank in range(sampler.reader()[1]) if not any(sampler.shares(0, rank))]:
                text = f"rank {', '.join(idle)} gets no sample to train: a micro-batch has fewer than there are ranks"
                self.records.incident(self.position.steps, "idle_ranks", text)

    def begin(self) -> Generator[Any, None, None]:
        """Return an iterator over the batches that are left of the epoch."""
        loop = self._batches()
        self._last = weakref.ref(loop)  # so that `break` ends it
        return loop

    def leave(self) -> None:
        if (loop := self._last()) is not None:  # a variable holds it after a `break`
            loop.close()

    def expects_step(self) -> bool:
        """Return False between two loops over batches, and during a save."""
        return not self.saving.is_busy and (self.present.is_out or self.engine.phase is Phase.AWAITED)

    def held_by(self, method: str) -> tuple[Present, ShardSampler]:
        """Return the present batch and its place.  Raises UserError if a method of Run is not called in the loop."""
        present = self.present
        if not present.is_out or present.evaluates or self.position.sampler is None:
            instead = ", not into run.evaluate(), whose metrics= gets all rows" * present.evaluates
            raise UserError(f"run.{method}() belongs into a loop over run.batches(){instead}")
        return self.present, self.position.sampler

    def may_stop(self, in_epoch: bool) -> bool:
        """Return True if the run may stop in an evaluation: not in a batch, and in an epoch only if the user says so.

        Nor after a `break`: its update is in the weights, but it is not counted.
        """
        in_batch = self.present.is_out or self.engine.is_updating
        return not in_batch and (in_epoch or self.records.epoch_began is None)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        present = self.present
        present.evaluates = True
        try:
            yield
        finally:
            present.evaluates = False

    @contextmanager
    def saved_if_not_finite(self) -> Iterator[None]:
        """Record and save what is complete if all ranks stop before a step."""
        try:
            yield
        except NonFinite:
            self.records.read_losses(self.position.steps)  # all ranks are here, so the saved losses are complete
            self.saving.save_unless_saved()
            raise
        finally:
            self.present.splits = False

    @contextmanager
    def saved_after_failure(self) -> Iterator[None]:
        """After an error, name the missing ranks, tell the others why this one ends, and save what can be saved."""
        try:
            with missing_ranks.naming_missing_ranks():
                yield
        except Exception as error:
            missing_ranks.report_failure(error)
            if self.saving.save_after_failure(error) and (steps := self.records.pending.steps()):
                say(f"the losses of steps {steps[0]} to {steps[-1]} were not yet recorded, and are lost")
            raise

    def _batches(self) -> Generator[Any, None, None]:
        engine, sampler, present = self.engine, self.position.sampler, self.present
        assert sampler is not None
        self.stop.begin()
        self.records.pending.begin()
        if not engine.is_updating:
            engine.phase = Phase.AWAITED
        try:
            # A run that was stopped after its last step, in the evaluation, has no steps left.
            for batch in () if self.position.is_last_step() else waiting_for_each(self.reading.training):
                seed(engine.device, engine.config.seed, sampler.epoch, sampler.step, engine.world.rank)
                engine.begin_batch()
                self.present = present = Present(batch, is_out=True)
                if why := self.reading.left_out(batch):
                    present.incidents.append(("skipped_step", f"skipped by all ranks, because {why}"))
                else:
                    yield batch
                if present is not self.present:
                    raise UserError("run.batches(): another loop over batches has begun; a run has one training set")
                if self.commit():
                    break
            self.saving.begin_tail()
        finally:
            if present is self.present:
                present.is_out = False
                if engine.phase is Phase.AWAITED:
                    engine.phase = Phase.BETWEEN
                self.records.batches_ended()

    def commit(self) -> bool:
        """Count the step whose batch was used, record it, and save or stop if it is time; return True at the end."""
        present, position, sampler = self.present, self.position, self.position.sampler
        assert sampler is not None
        if self.records.epoch_began is None:
            raise UserError("run.batches() belongs into the loop over run.epochs(), which records and saves its epoch")
        present.refuse_left_gradient(wrapped.module for wrapped in self.engine.models)
        samples, own, epoch = len(sampler.stretch()), sum(map(len, sampler.shares())), sampler.epoch
        position.count_step()
        self.engine.phase = Phase.AWAITED
        self.records.note_step(position, present, samples, own)
        stops = self.stop.reached()
        ends = sampler.step == len(sampler) or position.is_last_step()
        every = self.saving.config.checkpoint_every
        saves = every > 0 and position.steps % every == 0
        self.records.step_ended(position.steps, now=stops or ends or saves)
        if stops:
            self.save_and_stop()
        if ends:
            self.records.refuse_empty(epoch, present)
        elif saves:
            self.saving.save()
            self.records.pending.begin()
        return ends

    def end_epoch(self, is_left: bool = False) -> None:
        """Record and save an epoch, and stop if a signal asks for it; is_left: by run.end(), before its last batch."""
        position = self.position
        self.records.epoch_ended(position, is_left)
        assert position.sampler is not None
        position.recorded_step = position.steps
        self.engine.phase = Phase.BETWEEN
        if position.sampler.step == len(position.sampler) or not (position.is_last_step() or is_left):
            position.sampler.set_epoch(position.epoch + 1)
            self.records.begin_means()
        self.saving.tail.end()
        self.stop.begin()
        if not is_left and self.stop.reached():
            self.save_and_stop()
        self.saving.save()

    def save_and_stop(self) -> NoReturn:
        """Save where all ranks have stopped, and end together, because others fail if a rank ends early."""
        self.saving.tail.undo()
        self.saving.save()
        self.saving.wait_until_saved()
        self.records.run_ended(self.position, self.saving.saves, None)
        self.on_stop()
        raise Stopped

    def finish(self) -> None:
        states = [wrapped.state_dict() for wrapped in self.engine.models]
        named = {f"{at}.{name}": tensor for at, state in enumerate(states) for name, tensor in state.items()}
        weights = weights_sha256(states[0] if len(states) == 1 else named)
        self.records.run_ended(self.position, self.saving.saves, weights)
        self.saving.wait_until_saved()
