"""One optimizer step whose bits do not depend on the number of processes (--logical-world).

The global batch is cut into slices, and a process computes a contiguous range of them, one forward and backward each.
What a slice computes depends on its samples, its number and the position in the training alone; tree_sum adds slices in
one order.  Running statistics of BatchNorm become the mean of what each slice made of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from train.collectives.broadcast import broadcast_from_rank_0, of_all_ranks
from train.collectives.tree_sum import TreeSum
from train.config import TrainConfig, setting
from train.cpu.shared_memory import SharedMemory
from train.data.batches import pieces
from train.ddp.gradient_hooks import num_holders
from train.errors import SharedError, UserError, differences
from train.loop.numerics import seed
from train.loop.step import BufferCopies, Step, StepResult, Work
from train.records.metrics import weights_sha256
from train.records.slices import log_slice
from train.strategies import Context, Wrapped, replicated
from train.world.environment import World
from train.world.placement import processor


def wrap(model: nn.Module, context: Context) -> Wrapped:
    """Return the model as it is, with rank 0's weights on all ranks.  A collective."""
    broadcast_from_rank_0([*model.parameters(), *model.buffers()], context.group)
    return replicated(model, model)


class ExactStep(Step):
    """A Step that computes the slices of the sampler's parts, and adds them in one tree."""

    def __init__(self, config: TrainConfig, world: World, context: Context) -> None:
        super().__init__(config, world, context)
        of_ranks = of_all_ranks(", ".join(self.computes_on().values()), context.group)
        if unlike := differences(dict(enumerate(of_ranks))):
            raise SharedError(
                f"the ranks compute on {unlike}: their bits may differ. Choose nodes of one kind, or leave out "
                f"{setting('logical_world')}"
            )
        self.ranks_averaged = 1  # gradients are sums
        self._at, self._nth = (0, 0), 0  # the position of the last step, and how many steps it had before
        group = context.group or dist.group.WORLD
        self._shared = SharedMemory.of_one_host(group) if group and self.device.type == "cpu" else None
        self._sums: dict[tuple[int, torch.dtype], TreeSum] = {}
        self._holders: dict[TreeSum, list[int]] = {}

    def backward(self, loss: Tensor, weight: float | None, position: Any) -> StepResult:
        raise UserError("run.backward() has no slices, so it cannot be used with logical_world: use run.step()")

    def _gradients(self, work: Work) -> StepResult:
        if not work.split:
            raise UserError("run.step(…, split=False) has no slices, so it cannot be used with logical_world")
        position, models = work.position, self._trained_by(work.optimizer)[1]
        params = [param for wrapped in models for param in wrapped.module.parameters() if param.requires_grad]
        if not params:
            raise UserError("run.step(): all parameters of the optimizer are frozen, so there is nothing to train")
        own_buffers = self._all_buffers()
        buffers = [torch.view_as_real(each) if each.is_complex() else each for each in own_buffers]
        before, of_ranks = [each.clone() for each in buffers], position.slices_of_ranks()
        found = BufferCopies([wrapped.module for wrapped in self.models])  # the loop may have changed them
        at = position.epoch, position.step
        self._at, self._nth = at, self._nth + 1 if at == self._at else 0
        numbers, sizes = of_ranks[position.reader()[0]], self._sizes(position)
        sums, parts = self._sum(params, buffers), list[StepResult]()
        holders = num_holders(sums.begin(of_ranks), [])
        if holders != self._holders.setdefault(sums, holders):  # somebody has kept a gradient
            sums.renew()
        # A rank without slices calls the function, too, to know what it returns.
        for number, piece, size in zip(numbers or [-1], pieces(work.batch, sizes or [0]), sizes or [0], strict=True):
            found.restore()
            seed(self.device, self.config.seed, *at, number, self._nth)
            # In separate memory: kernels may compute differently where a tensor begins elsewhere.
            loss, part = self._loss(work, tree_map_only(Tensor, torch.clone, piece), size)
            parts.append(part)
            if any(now is not old for now, old in zip(self._all_buffers(), own_buffers, strict=True)):
                raise UserError("a forward replaces a buffer, and logical_world needs it changed in place: use copy_()")
            if number >= 0:
                self.scaler.scale(loss).backward()
                if self.config.log_slices:
                    assert self.config.run_dir is not None
                    place, loss_sum = (*at, self._nth, number), float(part.loss_sum)
                    log_slice(self.config.run_dir, self.world.rank, place, loss_sum, hashes_of_gradients(models))
                sums.add(number, parts_of_sum(params, buffers, before))
            for param in params:
                param.grad = None
        unpack(sums.total(), params, buffers, before, num_slices=of_ranks[-1].stop)
        result = self._result(work, parts)
        if not isinstance(result.weight, Tensor):
            return result
        own = torch.stack([torch.as_tensor(part.own) for part in parts])[: len(numbers)]
        places = [numbers.start, of_ranks[-1].stop - numbers.stop]  # of the others, which add zeros in any order
        return replace(result, weight=nn.functional.pad(own, places))

    def computes_on(self) -> dict[str, str]:
        """Return what decides the bits besides the settings."""
        threads = f"{torch.get_num_threads()} threads"
        return {"processor": processor(self.device), "torch": f"torch {torch.__version__}", "threads": threads}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"computes_on": self.computes_on()}

    def load_state_dict(self, state: dict[str, Any]) -> list[str]:
        """Continue with the checkpoint's number of threads; return in words what else it was computed on."""
        saved = state["computes_on"]
        torch.set_num_threads(int(saved["threads"].split()[0]))
        return super().load_state_dict(state) + [
            f"the checkpoint was computed on {saved[name]}, and this is {now}: the bits may change from here on"
            for name, now in self.computes_on().items()
            if saved[name] != now
        ]

    def _sum(self, params: Sequence[nn.Parameter], buffers: Sequence[Tensor]) -> TreeSum:
        size = sum(tensor.numel() for tensor in (*params, *buffers)) + len(params)
        is_wide = any(param.dtype is torch.float64 for param in params)
        like = params[0].new_empty(0, dtype=torch.float64 if is_wide else torch.float32)
        return self._sums.setdefault((size, like.dtype), TreeSum(size, like, self.context.group, self._shared))

    def _all_buffers(self) -> list[Tensor]:
        return [each for wrapped in self.models for each in wrapped.module.buffers() if each.dtype is not torch.bool]


def hashes_of_gradients(models: Sequence[Wrapped]) -> dict[str, str]:
    named = {
        f"{name} of model {index}" if len(models) > 1 else name: param.grad
        for index, wrapped in enumerate(models)
        for name, param in wrapped.module.named_parameters()
        if param.grad is not None
    }
    return {name: weights_sha256({name: gradient.to_dense()}) for name, gradient in named.items()}


@torch.no_grad()
def parts_of_sum(params: Sequence[nn.Parameter], buffers: Sequence[Tensor], before: Sequence[Tensor]) -> list[Tensor]:
    """Return gradients, what the buffers have changed by, and 1 for each parameter with a gradient."""
    if any(param.is_complex() for param in params):
        raise UserError("logical_world adds real numbers only, and the model has complex parameters")
    grads = [torch.zeros_like(param) if param.grad is None else param.grad.to_dense() for param in params]
    used = torch.tensor([float(param.grad is not None) for param in params], device=params[0].device)
    changes = [torch.where(now == old, 0, now - old) for now, old in zip(buffers, before, strict=True)]
    return [*grads, *changes, used]


@torch.no_grad()
def unpack(
    total: Tensor, params: Sequence[nn.Parameter], buffers: Sequence[Tensor], before: Sequence[Tensor], num_slices: int
) -> None:
    """Set p.grad, or None where no slice used the parameter, and change the buffers by the mean over the slices."""
    *parts, used = total.split([tensor.numel() for tensor in (*params, *buffers)] + [len(params)])
    for param, part, count in zip(params, parts, used.tolist(), strict=False):
        param.grad = part.view_as(param).to(param.dtype) if count else None
    for buffer, old, part in zip(buffers, before, parts[len(params) :], strict=True):
        mean = part.view_as(buffer) / num_slices
        buffer.copy_(old + (mean if buffer.is_floating_point() else mean.round().to(buffer.dtype)))
