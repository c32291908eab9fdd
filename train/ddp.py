"""CustomDDP: data-parallel training with gradients that live in buckets and are averaged during backward.

What happens in a backward, with a picture: docs/ddp.md.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join, Joinable
from torch.utils._pytree import tree_leaves

from train import lost_ranks
from train.bare_state import BareState
from train.broadcast import BufferBroadcast, broadcast_from_rank_0
from train.bucket import Bucket
from train.bucket_layout import lay_out
from train.ddp_checks import (
    bucket_explained,
    refuse_changed_parameters,
    refuse_compiled_autograd,
    refuse_different_graphs,
    refuse_different_modules,
    refuse_what_has_no_mean,
)
from train.errors import UserError
from train.gradient_nodes import GradientNode
from train.join import Shadow, announce
from train.memory import give_back_freed_memory
from train.sync import MakeSync
from train.sync.all_reduce import AllReduce

_MIB = 2**20
_GIVEN_BACK_BYTES = 4 * _MIB


class CustomDDP(BareState, Joinable):
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
        BareState.__init__(self)
        Joinable.__init__(self)
        group = process_group or dist.group.WORLD
        if group is None:
            raise UserError("CustomDDP needs a process group: call torch.distributed.init_process_group() first")
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
        self._frozen = {name: param for name, param in named if not param.requires_grad}
        self._kinds = [(param.dtype, param.device) for param in self._params]
        refuse_what_has_no_mean(module)
        refuse_different_modules(module, self._settings, group)
        broadcast_from_rank_0([*module.parameters(), *module.buffers()], group)
        self.sync = sync(group)
        self._sent_buffers = BufferBroadcast(module, group) if broadcast_buffers else None
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
        # Indices of parameters that got a gradient since the last mean; only same_graph asks.
        self._arrived: set[int] = set()
        self._nodes = [GradientNode(param, self, index) for index, param in enumerate(self._params)]
        # Autograd has a thread for each device.
        self._lock = threading.RLock()

    def __del__(self) -> None:
        for node in self.__dict__.get("_nodes", []):
            node.remove_hook()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        # Within a backward it is checkpointing that runs this forward once more.
        if self._in_backward and torch._C._current_graph_task_id() == -1:
            self._void_backward()
        if torch.is_grad_enabled():
            refuse_changed_parameters(self._names, self._params, self._kinds, self._frozen)
        source = announce(self) if self._join_config.enable else 0
        if self.averages:
            self._send_buffers(source)
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

    def _send_buffers(self, source: int) -> None:
        position = f"forward after backward {self._num_backwards}"
        with lost_ranks.explained("sending rank 0's buffers", position, self.group):
            # The module's own mode: it may have changed without the wrapper's.
            if self._sent_buffers is not None and self.module.training:
                self._sent_buffers.send(source)

    def _backward_begins(self, *_: object) -> None:
        """Have _finish() called at its end.  Reached through an output of forward, it is the outermost backward."""
        with self._lock:
            task = torch._C._current_graph_task_id()
            if self.averages and self._graph_task != task:
                refuse_compiled_autograd()
                self._graph_task = task
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)
                # Now, not at the first gradient: the backward may raise before it, and the others wait all the same.
                if any(node.will_run() for node in self._nodes):
                    self._begin()

    def _begin(self) -> None:
        if not self._in_backward:
            self._in_backward = True
            for bucket in self._buckets:
                bucket.begin()

    def gradient_ready(self, index: int) -> None:
        """Autograd calls this when it has added to p.grad."""
        with self._lock:
            self._arrived.add(index)
            if not self.averages:
                return
            if not self._in_backward:
                if self._graph_task is None:
                    # The loss was not made from a tensor that forward returned.
                    self._backward_begins()
                self._begin()
            if self._arrivals is not None:
                self._arrivals.append(index)
            else:
                self._take(index)

    def _take(self, index: int) -> None:
        bucket, slot = self._places[index]
        if bucket.arrive(slot):
            # Only ever in the order of the list, so that all ranks begin the same collectives in the same order.
            while self._num_started < len(self._buckets) and self._buckets[self._num_started].is_full:
                self._start_next_bucket()

    def _start_next_bucket(self) -> None:
        self._num_started += 1
        self._buckets[self._num_started - 1].start()

    def _finish(self) -> None:
        """Autograd calls this at the end of backward."""
        if self._in_backward:  # else torch.autograd.grad() has passed through
            self._average()
            self._compare_graphs(self._arrived)
        self._graph_task = None

    def _average(self) -> None:
        """Start what is left, wait for all."""
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

    def _compare_graphs(self, arrived: set[int] | None) -> None:
        self._arrived = set()
        if self._settings["same_graph"]:
            refuse_different_graphs(self._names, arrived, self.join_device, self.group)

    def _complete(self) -> None:
        """Wait for all buckets.  Those of several collectives take turns: what one waits for, others have started."""
        running = list(enumerate(self._buckets, start=1))
        while running:
            for number, bucket in tuple(running):
                with bucket_explained(bucket, f"backward {self._num_backwards + 1}, bucket {number}", self.group):
                    bucket.wait()
                if not bucket.proceed():
                    running.remove((number, bucket))
        self._in_backward, self._num_started, self._graph_task = False, 0, None

    def _void_backward(self) -> None:
        """The last backward raised before its end: complete what other ranks may wait for, and forget it."""
        if self._arrivals is not None:
            self._arrivals.clear()
            self._build_buckets()
        for bucket in self._buckets[self._num_started :]:
            bucket.void()
        self._complete()
        for bucket in self._buckets:
            bucket.flat.zero_()
        self._compare_graphs(None)

    def _build_buckets(self) -> None:
        """Lay out buckets, and let what has arrived move in."""
        arrivals, self._arrivals = self._arrivals or [], None
        capacity = self._settings["bucket_mib"] * _MIB
        first_capacity = min(self._settings["first_bucket_mib"] * _MIB, capacity)
        with lost_ranks.explained("agreeing on the buckets", f"end of backward {self._num_backwards + 1}", self.group):
            self._buckets, self._places = lay_out(
                arrivals, self._names, self._params, self.sync, first_capacity, capacity
            )
        moved_bytes = 0
        for index in arrivals:
            self._take(index)
            moved_bytes += self._params[index].numel() * self._params[index].element_size()
            if moved_bytes > _GIVEN_BACK_BYTES:
                # Otherwise the heap would hold this first copy of the gradients beside the buckets: a peak for ever.
                give_back_freed_memory()
                moved_bytes = 0

    def shadow(self, source: int) -> None:
        """Take part in the collectives of a step of other ranks, without gradients; buffers are those of `source`."""
        self._send_buffers(source)
        for param in self._params:
            param.grad = None
        self._begin()
        self._average()
        self._compare_graphs(None)

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

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(CustomDDP, **self._settings), (self.module,)
