"""One optimizer step: the loss of each micro-batch, the mean of the gradients, a common verdict, the update."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim

from train.collectives.sync_batchnorm import has_sync_batchnorm
from train.config import TrainConfig, setting
from train.data.batches import pieces
from train.data.sampler import ShardSampler
from train.data.shard import num_steps
from train.errors import UserError
from train.loop import nonfinite
from train.loop.returned import NOTHING, refuse_unlike_loss, refuse_unlike_mean
from train.strategies import Context, Wrapped, autocast
from train.world.environment import World


class Phase(Enum):
    """How far the training has come with the batch of a loop."""

    AWAITED = auto()  # at the start of the run, and in a loop that waits for its next batch
    GIVEN = auto()  # the loop has a batch, and no step has begun
    RUNNING = auto()  # a step has begun
    UPDATED = auto()  # an optimizer has begun to use the batch: the weights are neither before nor after a step
    BETWEEN = auto()  # the loop has ended


@dataclass(frozen=True)
class StepResult:
    """The result of one step on this rank; the host has not waited for the device to know it.

    of_samples: the loss of each sample of this rank, (n,), or in its place the mean of its micro-batch.
    loss_sum: sum of this rank's losses, float64, on the device.
    own, weight: how much this rank, and all ranks together, count: in samples, or else in what the function returned.
    grad_norm: norm of the global gradient, before it was clipped, on its device; not finite if fp16 overflowed.
    skipped: why the optimizer did not use the gradient, the same on all ranks; None if it did.
    repeated: why the step took more than one attempt, the same on all ranks; None if it did not.
    """

    of_samples: Tensor
    loss_sum: Tensor
    own: float | Tensor
    weight: float | Tensor
    grad_norm: Tensor | None = None
    skipped: str | None = None
    repeated: str | None = None

    @property
    def loss(self) -> Tensor:
        """This rank's mean, on the device, and 0 without samples; the mean over all ranks stands in the records."""
        own = torch.as_tensor(self.own, dtype=torch.float64, device=self.loss_sum.device)
        return self.loss_sum / own.clamp(min=1e-30)


@dataclass(frozen=True)
class Work:
    """What one step does, as Run.step() says; position: the sampler that chose the batch, not yet advanced."""

    batch: Any
    optimizer: optim.Optimizer
    position: ShardSampler
    function: Callable[[Any], Any] | None = None
    clip_norm: float | None = None
    split: bool = True
    closure: Callable[[], Any] | None = None

    @property
    def samples(self) -> int:
        """How many samples the step has on all ranks together."""
        return len(self.position.stretch())


# An optimizer, the models that it trains, the other models, and the parameters that are not the optimizer's.
_Trained = tuple[optim.Optimizer, list[Wrapped], list[Wrapped], list[nn.Parameter]]


class Step:
    """Trains the models one step at a time; a gradient is the mean over the global batch on any number of processes.

    Of the config, precision, accumulate, on_nonfinite and on_oom count here.
    """

    def __init__(self, config: TrainConfig, world: World, context: Context) -> None:
        self.config, self.world, self.context, self.device = config, world, context, context.device
        self.ranks_averaged = world.world_size
        self.models, self.params = list[Wrapped](), list[dict[str, nn.Parameter]]()  # of each model, by name
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.precision == "fp16")
        self.micro_batches = config.accumulate
        self.phase = Phase.AWAITED
        self._skipped_in_a_row = 0
        self._trained: dict[tuple[int, int], _Trained] = {}
        self._runs_on_empty_batches = False

    def add(self, wrapped: Wrapped) -> None:
        self.models.append(wrapped)
        self.params.append(dict(wrapped.module.named_parameters()))  # after a forward fsdp has others in their place
        self._trained.clear()
        modules = [each.module for each in self.models]
        self._buffers = BufferCopies(modules)
        self._runs_on_empty_batches = any(map(has_sync_batchnorm, modules))

    def wrapped(self, model: Any) -> Wrapped | None:
        """Return what add() got for a model, the bare one or the one that is called; None for anything else."""
        return next((each for each in self.models if model is each.call or model is each.module), None)

    @property
    def is_updating(self) -> bool:
        """True while the weights are in a state that no checkpoint may hold."""
        return self.phase is Phase.UPDATED

    def begin_batch(self) -> None:
        """Remember what a skipped or failed step must not change."""
        if self.models:
            self._buffers.keep()
        if not self.is_updating:  # the loop before was left by `break`
            self.phase = Phase.GIVEN

    def undo(self) -> None:
        """Give the buffers back what they held before a batch whose step has not come as far as the optimizer."""
        if self.models and self.phase in (Phase.GIVEN, Phase.RUNNING):
            self._buffers.restore()

    def state_dict(self) -> dict[str, Any]:
        """Return what the next step depends on besides models and optimizers."""
        return {"scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> list[str]:
        """Continue where `state` was saved; return in words what may change the bits from here on."""
        self.scaler.load_state_dict(state["scaler"])
        return []

    def run(self, work: Work) -> StepResult:
        """Train one step on this rank's share of the global batch.

        Raises NonFinite, with the models as they were before, if the gradient is not finite and the run is to stop.
        """
        if self.phase is not Phase.GIVEN and self.models:
            self._buffers.keep()
        if not self.is_updating:
            self.phase = Phase.RUNNING
        with self._alone(work.optimizer):
            result = self._gradients(work)
        return self.update(work, result)

    def backward(self, loss: Tensor, weight: float | None, position: ShardSampler) -> StepResult:
        """Add the gradient of a mean over this rank's samples, or over `weight` things, to that of the other ranks."""
        num = sum(map(len, position.shares()))
        refuse_unlike_mean(loss)
        own, whole = float(num), float(len(position.stretch()))
        if weight is not None:
            own = weight * bool(num)
            weights = torch.tensor(own, dtype=torch.float64)
            dist.all_reduce(weights)
            whole = float(weights)
        mean = loss if own else 0.0 * loss.nan_to_num()  # a mean over nothing is NaN
        self.scaler.scale(nonfinite.marked(mean * (own * self.world.world_size / (whole or 1.0)))).backward()
        loss_sum, skipped = mean.detach().double() * own, None if whole else NOTHING
        return StepResult(loss.detach().expand(num), loss_sum, own, whole, skipped=skipped)

    def update(self, work: Work, result: StepResult) -> StepResult:
        """Judge the gradients together with the other ranks, and let the optimizer use them unless they are bad."""
        optimizer, models, _, _ = self._trained_by(work.optimizer)
        for wrapped in models:
            wrapped.after_backward()
        params = [param for group in optimizer.param_groups for param in group["params"] if param.grad is not None]
        skipped = result.skipped
        if isinstance(result.weight, Tensor):
            dist.all_reduce(result.weight, group=self.context.group)
            result = replace(result, weight=result.weight.sum())
            if whole := float(result.weight):
                torch._foreach_mul_([param.grad for param in params], work.samples / whole)
            else:
                skipped = NOTHING
        self.scaler.unscale_(optimizer)
        its = {id(param): param.grad for param in params}  # another optimizer of the same model may come later
        norms = [w.norm([its[id(param)] for param in w.module.parameters() if id(param) in its]) for w in models]
        grad_norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
        if work.clip_norm is not None:
            nn.utils.clip_grads_with_norm_(params, work.clip_norm, grad_norm)
        if skipped is not None:
            self._buffers.restore()
        elif not nonfinite.is_finite(grad_norm):
            skipped = self._refuse_gradient(work, result)
        self.scaler.update()
        if skipped is None:
            self.phase, self._skipped_in_a_row = Phase.UPDATED, 0
            optimizer.step() if work.closure is None else optimizer.step(work.closure)
        optimizer.zero_grad(set_to_none=True)
        return replace(result, grad_norm=grad_norm, skipped=skipped)

    def _trained_by(self, optimizer: optim.Optimizer) -> _Trained:
        """Return what the optimizer trains.  Raises UserError if a parameter of it belongs to no model of the run."""
        key = id(optimizer), sum(len(group["params"]) for group in optimizer.param_groups)
        if (known := self._trained.get(key)) is not None:
            return known
        ours = {id(param) for group in optimizer.param_groups for param in group["params"]}
        of_models = [list(params.values()) for params in self.params]
        everything = {id(param): param for params in of_models for param in params}
        if foreign := len(ours - everything.keys()):
            raise UserError(
                f"{foreign} of {len(ours)} parameters of the optimizer belong to no model that run.wrap() has "
                "returned, so their gradients would differ between ranks: wrap each model that is trained, and give "
                "the optimizer the parameters of what run.wrap() returns"
            )
        models, others = list[Wrapped](), list[Wrapped]()
        for wrapped, params in zip(self.models, of_models, strict=True):
            (models if any(id(param) in ours for param in params) else others).append(wrapped)
        frozen = [param for number, param in everything.items() if number not in ours]
        return self._trained.setdefault(key, (optimizer, models, others, frozen))

    @contextmanager
    def _alone(self, optimizer: optim.Optimizer) -> Iterator[None]:
        """Let only the optimizer's parameters get gradients in the block."""
        _, _, others, not_its = self._trained_by(optimizer)
        frozen = [param for param in not_its if param.requires_grad]
        with no_sync(others):
            for param in frozen:
                param.requires_grad_(False)
            try:
                yield
            finally:
                for param in frozen:
                    param.requires_grad_(True)

    def _gradients(self, work: Work) -> StepResult:
        """Run forward and backward of all micro-batches; return the losses of this rank."""
        sizes = self._sizes(work.position)
        if not work.split:
            sizes = [sum(sizes)]
        models, parts = self._trained_by(work.optimizer)[1], list[StepResult]()
        for index, piece in enumerate(pieces(work.batch, sizes, 0 if self._runs_on_empty_batches else 2)):
            with no_sync(models if index < len(sizes) - 1 else []):
                loss, part = self._loss(work, piece, sizes[index])
                self.scaler.scale(loss).backward()
            parts.append(part)
        return self._result(work, parts)

    def _result(self, work: Work, parts: list[StepResult]) -> StepResult:
        """Return the losses of this rank's micro-batches as those of the step."""
        of_samples, own = torch.cat([part.of_samples for part in parts]), [part.own for part in parts]
        if not isinstance(own[0], Tensor):
            return StepResult(of_samples, of_samples.sum(dtype=torch.float64), len(of_samples), work.samples)
        weight = torch.stack([torch.as_tensor(each) for each in own]).sum()
        return StepResult(of_samples, torch.stack([part.loss_sum for part in parts]).sum(), weight, weight.clone())

    def _loss(self, work: Work, piece: Any, size: int) -> tuple[Tensor, StepResult]:
        """Return the part of the loss whose sum over micro-batches is averaged over ranks, and what is kept of it."""
        # The wrapper takes the mean over ranks; this factor turns a rank's sum over its samples into the global mean.
        per_sample = self.ranks_averaged / work.samples
        with autocast(self.config.precision, self.device):
            assert work.function is not None
            returned = work.function(piece)
        refuse_unlike_loss(returned, size)
        if isinstance(returned, tuple):
            loss, weight = returned
            own = torch.as_tensor(weight, dtype=torch.float64, device=self.device).detach() * bool(size)
            of_samples = (loss.detach() / own.clamp(min=1e-30)).expand(size)
            part = StepResult(of_samples, loss.detach().double() * bool(size), own, own)
            loss = loss * per_sample
        else:
            of_samples = returned.detach()[:size] if returned.ndim else returned.detach().expand(size)
            part = StepResult(of_samples, of_samples.sum(dtype=torch.float64), size, size)
            if not work.split:
                return nonfinite.marked(returned.mean()), part
            loss = returned.sum() * per_sample if returned.ndim else returned * (size * per_sample)
        return (nonfinite.marked(loss) if size else 0.0 * loss.nan_to_num()), part

    def _sizes(self, position: ShardSampler) -> list[int]:
        return [len(part) for part in position.shares()]

    def _refuse_gradient(self, work: Work, result: StepResult) -> str:
        """Return why the step is skipped.  A collective."""
        position = work.position
        why = nonfinite.found(position, work.batch, result.of_samples)
        if why is None and self.scaler.is_enabled() and self.scaler.get_scale():
            return f"the gradient overflowed fp16 at a loss scale of {self.scaler.get_scale():g}"
        advice = "Try" if why is None else "Check these samples, or try"
        why = why or "the gradient is not finite, although all losses are finite"
        self._buffers.restore()
        self._skipped_in_a_row += 1
        if self.config.on_nonfinite == "skip" and self._skipped_in_a_row < nonfinite.MOST_SKIPPED_IN_A_ROW:
            return why
        work.optimizer.zero_grad(set_to_none=True)
        step = (position.epoch - 1) * num_steps(position.num_samples, position.batch_size) + position.step + 1
        raise nonfinite.NonFinite(
            f"step {step}: {why}, so all ranks stop before the optimizer's step"
            + (f" ({self._skipped_in_a_row} such steps in a row)" if self._skipped_in_a_row > 1 else "")
            + f". {advice} {setting('clip_norm')}, {setting('precision', 'fp32')}, "
            + f"{setting('on_nonfinite', 'skip')} or a lower {setting('lr')}"
        )


@contextmanager
def no_sync(models: list[Wrapped]) -> Iterator[None]:
    with ExitStack() as stack:
        for wrapped in models:
            stack.enter_context(wrapped.no_sync())
        yield


class BufferCopies:
    """Keeps the buffers (the running statistics of BatchNorm) as they were before the forward of a step."""

    def __init__(self, modules: list[nn.Module]) -> None:
        # Only tensors of one type are copied in one kernel.
        same_type: dict[torch.dtype, list[Tensor]] = defaultdict(list)
        for buffer in (buffer for module in modules for buffer in module.buffers()):
            same_type[buffer.dtype].append(buffer)
        self._pairs = [(buffers, [buffer.clone() for buffer in buffers]) for buffers in same_type.values()]

    @torch.no_grad()
    def keep(self) -> None:
        for buffers, copies in self._pairs:
            torch._foreach_copy_(copies, buffers)

    @torch.no_grad()
    def restore(self) -> None:
        for buffers, copies in self._pairs:
            torch._foreach_copy_(buffers, copies)
