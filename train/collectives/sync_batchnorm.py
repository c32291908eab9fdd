"""BatchNorm over the global batch, the same on CPU and CUDA, and correct even if a rank has no samples.

torch.nn.SyncBatchNorm refuses to run on the CPU, and on CUDA each of its layers waits for the device.  A rank without
samples gives no gradients for weight and bias, and under autocast sends statistics of another type.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from train.config import setting
from train.errors import UserError


def has_batchnorm(module: nn.Module) -> bool:
    return any(isinstance(part, _BatchNorm) for part in module.modules())


def has_sync_batchnorm(module: nn.Module) -> bool:
    """Return True if `module` has BatchNorm over the global batch: every rank, even without samples, runs it."""
    return any(isinstance(part, SyncBatchNorm | nn.SyncBatchNorm) for part in module.modules())


class SyncBatchNorm(_BatchNorm):
    """BatchNorm that in training takes mean and variance over the samples of all ranks of `process_group`.

    Input (N, C, …), any N including 0: a rank without samples takes part with weight zero.  Inputs, weight and bias
    may be of any floating type; the module computes and sends float32, or float64 for float64 inputs.  A forward does
    one all-gather of 2C + 1 numbers of each rank, a backward one all-reduce of 2C numbers.  Evaluation needs neither; a
    module without running statistics then uses the statistics of this rank's samples.  Gradients of weight and bias
    come from this rank's samples alone; without samples they are zeros.  The host never waits for the device.
    Running statistics keep their values if all ranks together have fewer than two numbers for a channel.
    Raises UserError in a backward with create_graph=True: it has no second derivatives.
    Source: Ioffe and Szegedy (arXiv:1502.03167); backward as in torch.nn.SyncBatchNorm.

    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    >>> net = SyncBatchNorm.convert_sync_batchnorm(net)
    >>> net(torch.ones(2, 3)).shape
    torch.Size([2, 4])
    """

    process_group: dist.ProcessGroup | None = None  # named as in torch.nn.SyncBatchNorm

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> nn.Module:
        """Make each BatchNorm in the module, torch.nn.SyncBatchNorm too, one of this class; return the module.

        Raises UserError for a BatchNorm with another forward; the module is then unchanged.
        """
        named = [(name, part) for name, part in module.named_modules() if isinstance(part, _BatchNorm)]
        norms = [(name, norm) for name, norm in named if not isinstance(norm, cls)]
        for name, norm in norms:
            forward = getattr(norm.forward, "__func__", None)  # None if it was replaced in the object alone
            if forward not in (_BatchNorm.forward, nn.SyncBatchNorm.forward):
                raise UserError(
                    f"{name or 'the model'} is a {type(norm).__name__}, whose own forward would be lost in "
                    "synchronised BatchNorm: put what it adds into another module, or give "
                    f"{setting('sync_batchnorm', False)}"
                )
        for _, norm in norms:
            norm.__class__ = cls
            vars(norm)["process_group"] = process_group
        return module

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the group, which cannot be copied: a copy, such as one for averages, uses the default group."""
        return {name: part for name, part in vars(self).items() if name != "process_group"}

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() < 2:
            raise ValueError(f"expected an input of at least 2 dimensions (N, C, …), got {input.dim()}")
        if not self.training:
            # fsdp gathers weight and bias in the type of the run, and the native kernel wants that of the statistics.
            mean, variance = self.running_mean, self.running_var
            of_type = input.dtype if mean is None else mean.dtype
            given = mean, variance, _to(of_type, self.weight), _to(of_type, self.bias)
            return F.batch_norm(input, *given, training=mean is None, eps=self.eps)
        output, mean, variance, count = _Normalize.apply(input, self.weight, self.bias, self.eps, self.process_group)
        if self.running_mean is not None:
            self._track(mean, variance, count)
        return output  # type: ignore[no-any-return]

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        # One number has no variance, and no number has no mean either.  The host does not wait for the count.
        counts = count > 1
        self.num_batches_tracked.add_(counts)
        share = 1 / self.num_batches_tracked.clamp(min=1) if self.momentum is None else self.momentum
        share = counts.to(count.dtype) * share
        unbiased = variance * (count / (count - 1).clamp(min=1))
        for running, latest in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.copy_(running.to(latest.dtype).lerp(latest, share))


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, group: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # A type that all ranks know: it follows from the input's type alone, on a rank without samples, too.
        precise = torch.promote_types(input.dtype, torch.float32)
        mean, variance, count = _global_statistics(_local_statistics(input, precise), group)
        given = mean, variance, _to(precise, weight), _to(precise, bias)
        # With given statistics the native kernel only normalises; it divides by zero if there are no samples.
        output = F.batch_norm(input, *given, eps=eps) if input.numel() else input.clone()
        ctx.save_for_backward(input, weight, mean, variance, count)
        ctx.eps, ctx.group = eps, group
        ctx.mark_non_differentiable(mean, variance, count)
        return output, mean, variance, count

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise UserError(
                "SyncBatchNorm has no second derivatives, which backward(create_graph=True) and "
                "autograd.grad(create_graph=True) ask for: drop create_graph, or keep BatchNorm "
                f"({setting('sync_batchnorm', False)})"
            )
        input, weight, mean, variance, count = ctx.saved_tensors
        channels, precise = input.size(1), mean.dtype
        inverse_std = (variance.double() + ctx.eps).rsqrt()
        if input.numel():
            # With given statistics the native kernel yields dy·γ/σ, Σ dy·x̂ and Σ dy: all that needs no other rank.
            # For channels-last inputs CUDA takes them from the second pair, the CPU always from the first
            # (batch_norm_backward_cuda in aten/src/ATen/native/cuda/Normalization.cu).
            statistics = mean, variance, mean, inverse_std.to(precise)
            grad_input, sum_grad_normed, sum_grad = torch.ops.aten.native_batch_norm_backward(
                grads[0], input, _to(precise, weight), *statistics, False, ctx.eps, [True, True, True]
            )
        else:
            grad_input = torch.empty_like(input)
            sum_grad_normed, sum_grad = mean.new_zeros(channels), mean.new_zeros(channels)
        sums = torch.cat([sum_grad, sum_grad_normed])
        dist.all_reduce(sums, group=ctx.group)
        mean_grad, mean_grad_normed = (sums / count.clamp(min=1)).double().view(2, channels)
        # The statistics depend on x too: dx = γ/σ·(dy − mean(dy) − x̂·mean(dy·x̂)), the last two as one line a·x + b.
        gain = inverse_std if weight is None else inverse_std * weight.double()
        slope = gain * inverse_std * mean_grad_normed
        offset = gain * mean_grad - slope * mean.double()
        shape = (1, channels, *[1] * (input.dim() - 2))
        slope, offset = slope.to(precise).view(shape), offset.to(precise).view(shape)
        # In a narrow type slope and offset would not cancel where the mean is far from zero.
        grad_input = grad_input.to(precise).addcmul_(input.to(precise), slope, value=-1).sub_(offset).to(input.dtype)
        if weight is None:
            return grad_input, None, None, None, None
        return grad_input, sum_grad_normed.to(weight.dtype), sum_grad.to(weight.dtype), None, None


def _local_statistics(input: Tensor, dtype: torch.dtype) -> Tensor:
    """Mean and variance of each channel of this rank's samples, and how many numbers a channel has; (2C + 1,)."""
    channels = input.size(1)
    local = torch.zeros(2 * channels + 1, dtype=dtype, device=input.device)
    if input.numel():
        # The first half of the native kernel; torch.var_mean gives the same in four times the time.
        # It computes in the type of the running statistics or, without any, in the input's type, which may be narrow.
        unused = torch.zeros(channels, dtype=dtype, device=input.device)
        mean, variance = torch.ops.aten.batch_norm_update_stats(input, unused, unused, 0.0)
        local[:channels], local[channels:-1] = mean, variance
        local[-1:].fill_(input.numel() // channels)
    return local


def _global_statistics(local: Tensor, group: dist.ProcessGroup | None) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance (C,) of all ranks' samples, and their count (), from each rank's statistics.  A collective.

    The statistics are gathered and not summed: where the mean is large, the difference between the sum of squares and
    the square of the sum would lose all digits.
    Source: Chan, Golub and LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979.
    """
    gathered = local.new_empty(dist.get_world_size(group) * local.numel())
    dist.all_gather_into_tensor(gathered, local, group)
    # A handful of numbers for each channel, so double costs nothing.
    of_ranks = gathered.view(-1, local.numel()).double()
    counts = of_ranks[:, -1:]
    means, variances = of_ranks[:, :-1].unflatten(1, (2, -1)).unbind(1)
    count = counts.sum()
    shares = counts / count.clamp(min=1)
    mean = (means * shares).sum(0)
    variance = ((variances + (means - mean).square()) * shares).sum(0)
    return mean.to(local.dtype), variance.to(local.dtype), count.to(local.dtype)


def _to(dtype: torch.dtype, parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.to(dtype)
