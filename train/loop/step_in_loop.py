"""What has been done with the present batch of a loop."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn, optim

from train.errors import UserError
from train.loop.step import StepResult


@dataclass
class StepInLoop:
    """Of several steps with one batch, the loss of the first that was not skipped counts."""

    batch: Any = None
    is_running: bool = False
    splits: bool = False  # in a step that may cut the batch
    losses: StepResult | None = None
    result: StepResult | None = None
    lr: float = 0.0
    incidents: list[tuple[str, str]] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    def refuse_left_gradient(self, modules: Iterable[nn.Module]) -> None:
        """Raise UserError if run.backward() has left a gradient in p.grad that neither run.apply() nor a user took."""
        params = (param for module in modules for param in module.parameters())
        if self.losses is not None and any(param.grad is not None and param.grad.any() for param in params):
            raise UserError(
                "run.backward() without run.apply() after it in the same batch: no checkpoint has its gradient; to "
                "accumulate, give run.batches() the whole batch and micro_batches="
            )

    def note(self, result: StepResult, optimizer: optim.Optimizer) -> None:
        self.losses = None
        if result.repeated is not None:
            self.incidents.append(("halved_micro_batch", result.repeated))
        if result.skipped is not None:
            self.incidents.append(("skipped_step", f"skipped by all ranks, because {result.skipped}"))
        elif self.result is None and (isinstance(result.weight, Tensor) or result.weight):
            self.result, self.lr = result, optimizer.param_groups[0]["lr"]
