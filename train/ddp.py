"""CustomDDP: data-parallel training with gradients that live in buckets and are averaged during backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train.buckets import assign_buckets
from train.errors import SharedError, UserError
from train.sync import Sync
from train.sync.all_reduce import AllReduce

_MIB = 2**20


class CustomDDP(nn.Module):
    """Keep one copy of `module` per rank equal by averaging gradients, bucket by bucket.

    At construction rank 0's parameters and buffers are sent to all ranks.  In backward each gradient is copied
    into its place in a flat bucket, which from then on is `p.grad`; a bucket whose last gradient has arrived is
    averaged over the ranks while backward goes on.  When backward returns all averages are there, so
    `loss.backward(); optimizer.step()` needs no extra call.

    Args:
        module: already on its device; all ranks have the same parameters in the same order.
        sync: what to do with a full bucket; one of train/sync/.
        bucket_mib: bucket capacity in MiB (2**20 bytes); first_bucket_mib: that of the first one.
        broadcast_buffers: send rank 0's buffers at every forward in training mode.  Not needed if they are kept
            equal otherwise (SyncBatchNorm).
        process_group: the ranks to average over; None is the default group.
    After backward, p.grad has p.shape and p.dtype and is the mean over the ranks.  A parameter that only some
    ranks used counts as zero on the others; one that no rank used keeps its p.grad (usually None).
    Inside `no_sync()` p.grad is this rank's own running sum, not yet averaged.
    Raises SharedError if parameters or buffers differ between ranks; names the first one.
    Source: Li et al., PyTorch Distributed, VLDB 2020 (arXiv:2006.15704); PyTorch note "DDP".
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        sync: Sync | None = None,
        bucket_mib: float = 25.0,
        first_bucket_mib: float = 1.0,
        broadcast_buffers: bool = True,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self.group = process_group
        self.sync = sync or AllReduce(process_group)
        self.bucket_bytes = bucket_mib * _MIB
        self.first_bucket_bytes = min(first_bucket_mib, bucket_mib) * _MIB
        self.broadcast_buffers = broadcast_buffers
        self._params = [param for param in module.parameters() if param.requires_grad]
        self._require_sync = True
        self._in_backward = False
        # Indices in the order in which gradients arrived in the first backward; None once that is known.
        self._arrivals: list[int] | None = []
        refuse_different_modules(module, process_group)
        broadcast_from_rank_0([*module.parameters(), *module.buffers()], process_group)
        # The last layer's gradients come first: until the true order is known, guess the reverse one.
        self._build_buckets(list(reversed(range(len(self._params)))))
        for index, param in enumerate(self._params):
            param.register_post_accumulate_grad_hook(partial(self._gradient_ready, index))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._in_backward:
            # The last backward raised before its end; what it began is void.
            self._reset()
        if self.broadcast_buffers and self.training and self._require_sync:
            broadcast_from_rank_0(list(self.module.buffers()), self.group)
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only add to p.grad; the first one outside averages the sum."""
        before, self._require_sync = self._require_sync, False
        try:
            yield
        finally:
            self._require_sync = before

    def _build_buckets(self, order: Sequence[int]) -> None:
        """Lay out buckets in `order` and move gradients that are already there to their new place."""
        groups = assign_buckets(
            [param.numel() * param.element_size() for param in self._params],
            [(param.dtype, param.device) for param in self._params],
            order,
            self.first_bucket_bytes,
            self.bucket_bytes,
        )
        self._buckets = [_Bucket([self._params[index] for index in group]) for group in groups]
        self._place = {
            index: (bucket, slot)
            for bucket, group in zip(self._buckets, groups, strict=True)
            for slot, index in enumerate(group)
        }
        self._reset()

    def _reset(self) -> None:
        self._in_backward = False
        self._next_bucket = 0
        for bucket in self._buckets:
            bucket.reset()

    def _gradient_ready(self, index: int, param: nn.Parameter) -> None:
        """Autograd calls this when p.grad of this backward is complete."""
        if not self._require_sync:
            return
        if not self._in_backward:
            self._in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        bucket, slot = self._place[index]
        bucket.fill(slot, param, self.sync.prescale)
        if self._arrivals is not None:
            self._arrivals.append(index)
        # Only ever in the order of the list, so that all ranks begin the same collectives in the same order.
        while self._next_bucket < len(self._buckets) and self._buckets[self._next_bucket].is_full:
            self._buckets[self._next_bucket].start(self.sync)
            self._next_bucket += 1

    def _finish(self) -> None:
        """Autograd calls this at the end of backward: start what is left, wait for all."""
        for bucket in self._buckets[self._next_bucket :]:
            bucket.fill_missing(self.sync.prescale)
            bucket.start(self.sync)
        for bucket in self._buckets:
            bucket.finish()
        if self._arrivals is not None:
            arrivals, self._arrivals = self._arrivals, None
            self._build_buckets(self._order_of_rank_0(arrivals))
        self._reset()

    def _order_of_rank_0(self, arrivals: list[int]) -> list[int]:
        """Rank 0's arrival order, on all ranks; parameters that did not arrive come last."""
        seen = set(arrivals)
        order = arrivals + [index for index in range(len(self._params)) if index not in seen]
        shared = torch.tensor(order, device=self._params[0].device)
        broadcast_from_rank_0([shared], self.group)
        return [int(index) for index in shared.tolist()]


class _Bucket:
    """Gradients of some parameters back to back in one flat tensor, and one number for each: on how many ranks used.

    The numbers travel with the gradients, so a parameter that no rank used is recognised without a collective of
    its own.
    """

    def __init__(self, params: list[nn.Parameter]) -> None:
        self.params = params
        size = sum(param.numel() for param in params)
        self.flat = params[0].new_zeros(size + len(params)).detach()
        self.used = self.flat[size:]
        self.views = []
        offset = 0
        for param in params:
            view = _view_like(self.flat[offset : offset + param.numel()], param)
            if param.grad is not None:
                param.grad = view.copy_(param.grad)
            self.views.append(view)
            offset += param.numel()
        self.reset()

    def reset(self) -> None:
        self.arrived = [False] * len(self.params)
        self.num_missing = len(self.params)
        self.wait: Callable[[], object] | None = None

    @property
    def is_full(self) -> bool:
        return self.num_missing == 0

    @torch.no_grad()
    def fill(self, slot: int, param: nn.Parameter, prescale: float) -> None:
        """Copy one gradient in, and let p.grad be that place from now on."""
        grad, view = param.grad, self.views[slot]
        assert grad is not None
        if grad.is_sparse:
            raise UserError(
                f"a parameter of shape {tuple(param.shape)} has sparse gradients, which do not fit in a bucket: "
                "use sparse=False in its Embedding"
            )
        if self.arrived[slot]:
            raise RuntimeError(
                f"the gradient of a parameter of shape {tuple(param.shape)} was completed twice in one backward "
                "(reentrant checkpointing does this): use checkpoint(..., use_reentrant=False)"
            )
        if grad.data_ptr() == view.data_ptr():
            view.mul_(prescale)
        else:
            torch.mul(grad, prescale, out=view)
            param.grad = view
        self.arrived[slot] = True
        self.num_missing -= 1

    @torch.no_grad()
    def fill_missing(self, prescale: float) -> None:
        """Complete a bucket at the end of backward: earlier sums of no_sync() count, all else is zero."""
        late = [slot for slot, arrived in enumerate(self.arrived) if not arrived]
        for slot in late:
            if self.params[slot].grad is not None:
                self.fill(slot, self.params[slot], prescale)
            else:
                self.views[slot].zero_()

    def start(self, sync: Sync) -> None:
        self.used.fill_(1)
        if not self.is_full:
            self.used.copy_(torch.tensor(self.arrived))
        self.wait = sync.start(self.flat)

    def finish(self) -> None:
        assert self.wait is not None
        self.wait()
        if self.is_full:
            return
        # Only a rank that misses gradients looks at the numbers: reading them would stall a GPU.
        for slot, used in enumerate(self.used.tolist()):
            if used and not self.arrived[slot]:
                self.params[slot].grad = self.views[slot]


def _view_like(flat: Tensor, param: nn.Parameter) -> Tensor:
    """`flat` seen with the shape of `param`, and with its memory layout (channels last, say) if that is dense."""
    if torch.ops.aten.is_non_overlapping_and_dense(param):
        return flat.as_strided(param.size(), param.stride())
    return flat.view(param.shape)


@torch.no_grad()
def broadcast_from_rank_0(tensors: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
    """Overwrite `tensors` of all ranks with those of the group's rank 0: as bytes, in one message for each device."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            by_device.setdefault(tensor.device, []).append(tensor)
    for same_device in by_device.values():
        parts = [tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in same_device]
        message = torch.cat(parts)
        dist.broadcast(message, group=group, group_src=0)
        for tensor, part in zip(same_device, message.split([part.numel() for part in parts]), strict=True):
            # A copy, because a slice of the message may not be aligned for the type.
            tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))


def refuse_different_modules(module: nn.Module, group: dist.ProcessGroup | None) -> None:
    """Raise SharedError, naming the first difference, unless all have equal names, shapes and types."""
    mine = [
        f"{name} {tuple(tensor.shape)} {tensor.dtype}{' frozen' if not tensor.requires_grad else ''}"
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]
    ]
    all_ranks: list[list[str]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(all_ranks, mine, group)
    for rank, theirs in enumerate(all_ranks):
        for ours, other in zip([*all_ranks[0], "nothing"], [*theirs, "nothing"], strict=False):
            if ours != other:
                raise SharedError(
                    f"the models of rank 0 and rank {rank} differ: rank 0 has {ours}, rank {rank} has {other}"
                )
