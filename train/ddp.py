"""CustomDDP: data-parallel training with gradients that live in buckets and are averaged during backward.

What happens in a backward, with a picture: docs/ddp.md.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join, Joinable
from torch.utils._pytree import tree_leaves

from train.broadcast import BufferBroadcast, broadcast_from_rank_0
from train.bucket import Bucket
from train.buckets import assign_buckets
from train.ddp_checks import explained, refuse_different_graphs, refuse_different_modules, refuse_what_has_no_mean
from train.errors import UserError
from train.join import Shadow, announce
from train.memory import give_back_freed_memory
from train.sync import MakeSync
from train.sync.all_reduce import AllReduce

_MIB = 2**20
_GIVEN_BACK_BYTES = 4 * _MIB


class CustomDDP(nn.Module, Joinable):
    """Keep one copy of `module` per rank equal by averaging gradients, bucket by bucket.

    At construction rank 0's parameters and buffers are sent to all ranks.  In backward each gradient moves into its
    place in a flat bucket, which from then on is `p.grad`; a bucket whose last gradient has arrived is averaged over
    the ranks while backward goes on.  When backward returns all averages are there, so
    `loss.backward(); optimizer.step()` needs no extra call.

    Args:
        module: already on its device; all ranks have the same parameters in the same order.
        sync: what to do with a full bucket: a class of train/sync/, or a partial() of it with its options.
        bucket_mib: bucket capacity in MiB (2**20 bytes); first_bucket_mib: that of the first one.
        broadcast_buffers: send rank 0's buffers at every forward in training mode.  Not needed if they are kept
            equal otherwise (SyncBatchNorm).
        same_graph: raise, naming parameters and ranks, if some ranks used a parameter and others did not.
        process_group: the ranks to average over; None is the default group.
    After backward, p.grad has p.shape and p.dtype and is the mean over the ranks.  A parameter that only some
    ranks used counts as zero on the others; one that no rank used keeps its p.grad (usually None).
    Backward passes inside `no_sync()` leave in p.grad this rank's own running sum, not yet averaged.
    State dicts are those of `module`: a checkpoint does not tell how it was trained.
    Making, copying and unpickling one are collectives; a copy is on the default group.
    Raises SharedError if parameters or buffers differ between ranks, and names them; UserError if a collective does
    not complete: which bucket, which parameters, which ranks are missing.
    Source: Li et al., PyTorch Distributed, VLDB 2020 (arXiv:2006.15704); PyTorch note "DDP".
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        sync: MakeSync = AllReduce,
        bucket_mib: float = 25.0,
        first_bucket_mib: float = 1.0,
        broadcast_buffers: bool = True,
        same_graph: bool = False,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        Joinable.__init__(self)
        group = process_group or dist.group.WORLD
        assert group is not None
        self.module, self.group, self.training = module, group, module.training
        self._settings: dict[str, Any] = {
            "sync": sync,
            "bucket_mib": bucket_mib,
            "first_bucket_mib": first_bucket_mib,
            "broadcast_buffers": broadcast_buffers,
            "same_graph": same_graph,
        }
        named = list(module.named_parameters())
        self._names = [name for name, param in named if param.requires_grad]
        self._params = [param for _, param in named if param.requires_grad]
        self._frozen = [(name, param) for name, param in named if not param.requires_grad]
        refuse_what_has_no_mean(module)
        refuse_different_modules(module, self._settings, group)
        broadcast_from_rank_0([*module.parameters(), *module.buffers()], group)
        self.sync = sync(group)
        self._sent_buffers = BufferBroadcast(module if broadcast_buffers else nn.Module(), group)
        self.averages = True
        # Ranks that have run out of inputs add zeros to each sum: see train/join.py.
        self.mean_over_active_ranks, self.join_factor = False, 1.0
        self._buckets: list[Bucket] = []
        # Indices of parameters as their gradients arrive in the first backward; None once there are buckets.
        self._arrivals: list[int] | None = []
        self._num_backwards = self._num_started = 0
        self._in_backward = False
        # The backward (the outermost, if one runs inside another) at whose end _finish() will be called.
        self._graph_task: int | None = None
        self._hooks = [
            param.register_post_accumulate_grad_hook(_call_while_alive(self, index))
            for index, param in enumerate(self._params)
        ]

    def __del__(self) -> None:
        for hook in self.__dict__.get("_hooks", []):
            hook.remove()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._in_backward:
            self._void_backward()
        for name, param in self._frozen:
            if param.requires_grad:
                raise UserError(f"{name} was frozen when CustomDDP was made and is not now: wrap the module again")
        source = announce(self) if self._join_config.enable else 0
        if self.training and self.averages:
            self._sent_buffers.send(source)
        output = self.module(*args, **kwargs)
        if torch.is_grad_enabled() and self.averages and not torch.compiler.is_compiling():
            for tensor in [output] if isinstance(output, Tensor) else tree_leaves(output):
                if isinstance(tensor, Tensor) and tensor.grad_fn is not None:
                    tensor.register_hook(self._backward_begins)
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only add to p.grad; the first one outside averages the sum."""
        before, self.averages = self.averages, False
        try:
            yield
        finally:
            self.averages = before

    def _backward_begins(self, *_: object) -> None:
        """Have _finish() called at its end.  Reached through an output of forward, it is the outermost backward."""
        task = torch._C._current_graph_task_id()
        if self.averages and self._graph_task != task:
            self._graph_task = task
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def gradient_ready(self, index: int) -> None:
        """Autograd calls this when it has added to p.grad."""
        if not self.averages:
            return
        if not self._in_backward:
            self._in_backward = True
            if self._graph_task is None:
                # The loss was not made from a tensor that forward returned.
                self._backward_begins()
            for bucket in self._buckets:
                bucket.begin()
        if self._arrivals is not None:
            self._arrivals.append(index)
            return
        bucket, slot = self._places[index]
        if bucket.arrive(slot):
            # Only ever in the order of the list, so that all ranks begin the same collectives in the same order.
            while self._num_started < len(self._buckets) and self._buckets[self._num_started].is_full:
                self._start_next_bucket()

    def _start_next_bucket(self) -> None:
        self._num_started += 1
        self._buckets[self._num_started - 1].start()

    def _finish(self) -> None:
        """Autograd calls this at the end of backward: start what is left, wait for all."""
        if not self._in_backward:
            self._graph_task = None
            return  # torch.autograd.grad() has passed through
        if self._arrivals is not None:
            self._build_buckets()
        while self._num_started < len(self._buckets):
            self._start_next_bucket()
        self._complete()
        for bucket in self._buckets:
            if self.join_factor != 1.0:
                bucket.flat.mul_(self.join_factor)
            bucket.hand_out()
        self._num_backwards += 1
        if self._settings["same_graph"]:
            refuse_different_graphs(self._buckets, self.group)

    def _complete(self) -> None:
        """Wait for all buckets.  Those of several collectives take turns: what one waits for, others have started."""
        running = list(enumerate(self._buckets, start=1))
        while running:
            for number, bucket in tuple(running):
                with explained(bucket, f"backward {self._num_backwards + 1}, bucket {number}", self.group):
                    bucket.wait()
                if not bucket.proceed():
                    running.remove((number, bucket))
        self._in_backward, self._num_started, self._graph_task = False, 0, None

    def _void_backward(self) -> None:
        """The last backward raised before its end: complete what other ranks may wait for, and forget it."""
        if self._arrivals is not None:
            self._arrivals.clear()
        for bucket in self._buckets[self._num_started :]:
            bucket.void()
        self._complete()
        for bucket in self._buckets:
            bucket.flat.zero_()

    def _build_buckets(self) -> None:
        """Lay out buckets in the order of arrival on rank 0, and let what has arrived arrive again."""
        arrivals, self._arrivals = self._arrivals or [], None
        last = {index: time for time, index in enumerate(arrivals)}
        # Parameters without a gradient come last: a bucket that one of them keeps open holds up no other.
        order = sorted(range(len(self._params)), key=lambda index: last.get(index, len(arrivals)))
        shared = torch.tensor(order, device=self._params[0].device)
        broadcast_from_rank_0([shared], self.group)
        lists = assign_buckets(
            [param.numel() * param.element_size() for param in self._params],
            [(param.dtype, param.device) for param in self._params],
            [int(index) for index in shared.tolist()],
            min(self._settings["first_bucket_mib"], self._settings["bucket_mib"]) * _MIB,
            self._settings["bucket_mib"] * _MIB,
        )
        times = Counter(arrivals)
        for indices in lists:
            params, names = [self._params[index] for index in indices], [self._names[index] for index in indices]
            self._buckets.append(Bucket(params, names, [times[index] or 1 for index in indices], self.sync))
        self._places = {
            index: (bucket, slot)
            for bucket, indices in zip(self._buckets, lists, strict=True)
            for slot, index in enumerate(indices)
        }
        moved_bytes = 0
        for index in arrivals:
            self.gradient_ready(index)
            moved_bytes += self._params[index].numel() * self._params[index].element_size()
            if moved_bytes > _GIVEN_BACK_BYTES:
                # Otherwise the heap would hold this first copy of the gradients beside the buckets: a peak for ever.
                give_back_freed_memory()
                moved_bytes = 0

    def shadow(self, source: int) -> None:
        """Take part in the collectives of a step of other ranks, without gradients; buffers are those of `source`."""
        if self.training:
            self._sent_buffers.send(source)
        for param in self._params:
            param.grad = None
        self._in_backward = True
        for bucket in self._buckets:
            bucket.begin()
        self._finish()
        for param in self._params:
            param.grad = None

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Join:
        """Within it ranks may have different numbers of inputs, as with native DDP's: see train/join.py."""
        return Join(
            [self], enable, throw_on_early_termination, divide_by_initial_world_size=divide_by_initial_world_size
        )

    def join_hook(self, **kwargs: Any) -> Shadow:
        return Shadow(self, **kwargs)

    @property
    def join_device(self) -> torch.device:
        return self._params[0].device

    @property
    def join_process_group(self) -> dist.ProcessGroup:
        return self.group

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """That of the bare module."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Into the bare module.  Raises UserError for assign=True: hooks belong to the parameters that are there."""
        if assign:
            raise UserError("load_state_dict(assign=True) replaces parameters: call it before CustomDDP is made")
        return self.module.load_state_dict(state_dict, strict)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(CustomDDP, **self._settings), (self.module,)


def _call_while_alive(ddp: CustomDDP, index: int) -> Callable[[Tensor], None]:
    """A hook that does not keep `ddp` alive: a module may be wrapped again after its wrapper is gone."""
    alive = weakref.ref(ddp)

    def hook(_: Tensor) -> None:
        ddp = alive()
        if ddp is not None:
            ddp.gradient_ready(index)

    return hook
