"""The training loop: epochs, evaluations, checkpoints, and the end of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

from torch import Tensor

from train.checkpoints.same_run import refuse_other_run
from train.collectives import missing_ranks
from train.collectives.agreement import StopAgreement, Stopped, while_others_wait
from train.collectives.waiting import waiting_for_each
from train.data.sampler import ShardSampler
from train.data.shard import num_steps
from train.errors import SharedError
from train.loop.emergency import save_after_failure, say_saved
from train.loop.evaluation import evaluate, in_pieces
from train.loop.finished import already_ended
from train.loop.losses import Means, PendingLosses, WorthlessWeights, refuse_if_not_finite
from train.loop.nonfinite import NonFinite
from train.loop.run import Run
from train.loop.schedules import lr_of_step
from train.loop.step import Step
from train.records.metrics import weights_sha256
from train.records.observer import Best, EpochRecord, Incident, Observer, RunEnd, StepRecord


class Trainer:
    """Trains and evaluates a model; all ranks make one each and call the same methods.

    Args:
        run: the config, and who takes part.
        step: the model with its strategy and its optimizer.
        sampler: this rank's share of each training step; `train_batches` follows it.
        validation_batches: this rank's share of the validation set; equally many on all ranks, some may be empty.
        observers: what follows the run on this rank; each is called in this order.
    """

    def __init__(
        self,
        run: Run,
        step: Step,
        sampler: ShardSampler,
        train_batches: Iterable[tuple[Tensor, Tensor]],
        validation_batches: Iterable[tuple[Tensor, Tensor]],
        observers: Sequence[Observer],
    ) -> None:
        self.run, self.config = run, run.config
        self.step, self.sampler, self.observers = step, sampler, observers
        self.train_batches, self.validation_batches = train_batches, validation_batches
        self.steps_done = self.saved_step = 0
        self.evaluated_step = 0  # step of the last evaluation; a run may be stopped before one is done
        self.epoch_means = Means()
        self.best: Best | None = None
        self._pending_losses = PendingLosses()
        self._stop_agreement = StopAgreement(run.stop)

    def fit(self) -> bool:
        """Train until the last epoch or step, and evaluate and save after each epoch.

        Returns False if a signal stopped the run before that; its position is then saved.  After an error, too, rank 0
        saves what it can.
        """
        try:
            with missing_ranks.naming_missing_ranks():
                return self._run_to_the_end()
        except Exception as error:
            missing_ranks.report_failure(error)
            if not isinstance(error, WorthlessWeights):
                save_after_failure(self.run, self.step, self.steps_done, self.saved_step, self.state_dict, error)
            raise

    def evaluate_only(self) -> bool:
        """Evaluate the loaded weights and report the result as an incident; return False if a signal stopped it."""
        try:
            with missing_ranks.naming_missing_ranks():
                validated = self.evaluate()
        except Stopped:
            return False
        text = f"validation loss {validated.loss:.4f}, accuracy {validated.accuracy:.2%} of {validated.samples} samples"
        self._report("evaluation", text)
        return True

    def _run_to_the_end(self) -> bool:
        try:
            self._run_epochs()
        except Stopped:
            self._save_and_stop()
            return False
        except NonFinite:
            self._record_losses(now=True)  # all ranks are here, so the saved losses are complete
            if self.config.spreads_model and self.saved_step < self.steps_done:
                self.save()  # each rank saves its part of the model
                self._wait_until_saved()
                say_saved(self.run, self.steps_done)
            raise
        self._end_run(weights_sha256(self.step.wrapped.state_dict()))
        self._wait_until_saved()
        return True

    def _run_epochs(self) -> None:
        if text := already_ended(self.config, self.sampler.epoch, self.steps_done, self.evaluated_step):
            self._report("already_ended", text)
        for epoch in range(self.sampler.epoch, self.config.epochs + 1):
            if self._is_last_step() and self.evaluated_step == self.steps_done:
                break
            started = time.monotonic()
            trained = self.train_epoch()
            if trained.samples == 0:
                raise SharedError(f"every step of epoch {epoch} was skipped; the run ends here")
            train_seconds = time.monotonic() - started
            validated = self.evaluate()
            seconds = time.monotonic() - started
            self.evaluated_step = self.steps_done
            refuse_if_not_finite(validated.loss, "validation loss")
            if self.best is None or validated.accuracy > self.best.accuracy:
                self.best = Best(epoch, validated.accuracy)
            record = EpochRecord(
                epoch=epoch,
                step=self.steps_done,
                train_loss=trained.loss,
                val_loss=validated.loss,
                val_accuracy=validated.accuracy,
                samples=trained.samples,
                samples_read=self.sampler.stretch(self.sampler.step - 1).stop,
                seconds=round(seconds, 3),
                train_seconds=round(train_seconds, 3),
            )
            for observer in self.observers:
                observer.epoch_ended(record)
            if len(self.sampler) == 0:
                self.sampler.set_epoch(epoch + 1)
                self.epoch_means = Means()
            self.save()

    def train_epoch(self) -> Means:
        """Run what is left of the sampler's epoch, up to max_steps.  Raises Stopped if a signal asks for it."""
        self.step.model.train()
        self._stop_agreement.begin()
        self._pending_losses.begin()
        # A run that was stopped after its last step, in the evaluation, has no steps left.
        for images, labels in () if self._is_last_step() else waiting_for_each(self.train_batches):
            self._train_step(images, labels)
            stops = self._stop_agreement.reached()
            ends = len(self.sampler) == 0 or self._is_last_step()
            saves = self.config.checkpoint_every > 0 and self.steps_done % self.config.checkpoint_every == 0
            self._record_losses(now=stops or ends or saves)
            if stops:
                raise Stopped
            if ends:
                break
            if saves:
                self.save()
                self._pending_losses.begin()
        return self.epoch_means

    def _train_step(self, images: Tensor, labels: Tensor) -> None:
        samples = len(self.sampler.stretch())
        steps_per_epoch = num_steps(self.sampler.num_samples, self.sampler.batch_size)
        lr = lr_of_step(self.config, self.steps_done, steps_per_epoch)
        self.step.set_lr(lr)
        outcome = self.step.run(images, labels, self.sampler)
        self.steps_done += 1
        self.sampler.advance()
        self.step.is_updating = False
        if outcome.repeated is not None:
            self._report("halved_micro_batch", outcome.repeated)
        if outcome.skipped is None:
            place = {"epoch": self.sampler.epoch, "step": self.steps_done}
            self._pending_losses.add(outcome, **place, lr=lr, samples=samples)
        else:
            self._report("skipped_step", f"skipped by all ranks, because {outcome.skipped}")

    def _report(self, kind: str, text: str) -> None:
        for observer in self.observers:
            observer.incident(Incident(self.steps_done, kind, text))

    def _record_losses(self, now: bool) -> None:
        """Report a step to the observers, with the losses of all pending steps if `log_every` are pending or `now`."""
        known: list[StepRecord] = []
        if now or len(self._pending_losses) == self.config.log_every:
            known = self._pending_losses.reduce(self.epoch_means)
        finite = list(takewhile(lambda record: math.isfinite(record.loss), known))
        for observer in self.observers:
            observer.step_ended(self.steps_done, finite)
        for record in known[len(finite) :]:  # with --on-nonfinite=stop_late
            refuse_if_not_finite(record.loss, f"loss of step {record.step}")

    def evaluate(self) -> Means:
        """Return mean loss and accuracy over the validation set.  Raises Stopped if a signal asks for it."""
        # Where memory ran out, whole batches may not fit here either.
        pieces = self.step.micro_batches // self.config.accumulate
        with self.step.evaluated_weights():
            return evaluate(
                self.step.model,
                in_pieces(self.validation_batches, pieces) if pieces > 1 else self.validation_batches,
                self.run.context,
                self.config.precision,
                self._stop_agreement,
                self.step.wrapped.predict,
            )

    def _save_and_stop(self) -> None:
        """Save where all ranks have stopped, and end together, because others fail if a rank ends early."""
        self.save()
        self._wait_until_saved()
        self._end_run(None)

    def _end_run(self, weights: str | None) -> None:
        saved = self.config.checkpoint_dir is not None
        for observer in self.observers:
            observer.run_ended(RunEnd(self.sampler.epoch, self.steps_done, saved, weights, self.best))

    def save(self) -> None:
        """Let rank 0 save the state after the current step; do nothing without checkpoint_dir.  A collective."""
        if self.config.checkpoint_dir is None:
            return
        self._wait_until_saved()  # the previous save
        state = self.state_dict()
        if self.run.checkpoints is not None:
            self.run.checkpoints.save(self.steps_done, state)
        self.saved_step = self.steps_done

    def _wait_until_saved(self) -> None:
        if self.config.checkpoint_dir is not None:
            checkpoints = self.run.checkpoints
            while_others_wait(self.run.world, lambda: None if checkpoints is None else checkpoints.wait())

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step depends on, and the config that led to it.  All ranks call it together."""
        return {
            **self.step.state_dict(),
            "sampler": self.sampler.state_dict(),
            "step": self.steps_done,
            "evaluated_step": self.evaluated_step,
            "epoch_means": vars(self.epoch_means),
            "best": self.best and vars(self.best),
            "config": self.config.model_dump(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was saved, on any number of processes.  To evaluate only, load the weights alone.

        Raises UserError, with nothing loaded, if the state belongs to another model or was reached with other options.
        """
        refuse_other_run(state["config"], self.config)
        if self.config.evaluate_only:
            self.step.load_weights(state)
            self.steps_done = state["step"]
            return
        self.sampler.load_state_dict(state["sampler"])
        self.step.load_state_dict(state)
        self.steps_done, self.evaluated_step = state["step"], state["evaluated_step"]
        self.saved_step = self.steps_done
        self.epoch_means = Means(**state["epoch_means"])
        self.best = Best(**best) if (best := state.get("best")) else None  # older checkpoints lack it
        if self.run.checkpoints is not None and self.run.world.rank == 0:
            self.run.checkpoints.set_aside_after(self.steps_done)

    def _is_last_step(self) -> bool:
        return self.config.max_steps is not None and self.steps_done >= self.config.max_steps
