"""Where a run stands: steps done, and the samples that are left of the epoch."""

from dataclasses import dataclass
from typing import Any

from train.collectives.agreement import mistakes_shared_by_all_ranks
from train.data.sampler import ShardSampler
from train.errors import UserError


@dataclass
class Position:
    """The optimizer steps of a run over all its starts, and its place in the epoch.

    steps: done.  recorded_step: the step of the last epoch's record.
    max_steps: the last step; None if the number of epochs decides.
    """

    max_steps: int | None
    steps: int = 0
    recorded_step: int = 0
    sampler: ShardSampler | None = None
    _loaded: dict[str, int] | None = None  # of the checkpoint, until there is a sampler

    @property
    def epoch(self) -> int:
        """The present epoch, from 1."""
        if self.sampler is not None:
            return self.sampler.epoch
        return self._loaded["epoch"] if self._loaded else 1

    def is_last_step(self) -> bool:
        return self.max_steps is not None and self.steps >= self.max_steps

    def has_all_steps(self) -> bool:
        """Return True if the last step is done and its epoch recorded."""
        return self.is_last_step() and self.recorded_step == self.steps

    def follow(self, sampler: ShardSampler) -> None:
        """Read by this sampler from here on.  Raises UserError if it has other samples.  A collective."""
        if self.sampler is not None:
            if changed := sampler.changed_since(self.sampler.state_dict()):
                raise UserError(
                    f"run.batches(): {changed}, but a run counts the steps of one training set. Join several into one "
                    "dataset; run.evaluate() reads others"
                )
            sampler.load_state_dict(self.sampler.state_dict())
        if self._loaded is not None:
            with mistakes_shared_by_all_ranks():
                sampler.load_state_dict(self._loaded)
            self._loaded = None
        self.sampler = sampler

    def count_step(self) -> None:
        assert self.sampler is not None
        self.steps += 1
        self.sampler.step += 1  # the epoch ends later, when it is recorded

    def state_dict(self) -> dict[str, Any]:
        assert self.sampler is not None
        return {"sampler": self.sampler.state_dict(), "step": self.steps, "evaluated_step": self.recorded_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loaded = state["sampler"]
        self.steps, self.recorded_step = state["step"], state["evaluated_step"]
        if self.sampler is not None:
            self.sampler.load_state_dict(state["sampler"])
