"""One backward of CustomDDP: gradients arrive, full buckets are averaged, and at the end all averages are there."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from train.collectives.missing_ranks import naming_missing_ranks
from train.collectives.waiting import waiting
from train.ddp.bucket import Bucket
from train.ddp.gradient_hooks import Arrivals, call_at_end_of_backward, current_backward, hooked_node, will_run
from train.ddp.packing import assign_buckets
from train.ddp.refusals import refuse_compiled_autograd
from train.sync import Sync


class Reducer:
    """Replaces gradients by their mean over the ranks while backward runs.

    The first backward only records the order in which gradients arrive.  At its end rank 0's order decides the
    buckets.  From then on a gradient moves into its bucket, and a full bucket is averaged at once.
    trained: parameters by name, the same on all ranks.  bucket_bytes, first_bucket_bytes: capacity of the buckets.
    """

    def __init__(
        self, trained: Mapping[str, nn.Parameter], sync: Sync, bucket_bytes: float, first_bucket_bytes: float
    ) -> None:
        self.sync, self.buckets, self.num_backwards = sync, list[Bucket](), 0
        self.averages = True  # False inside no_sync(), where a backward only adds to p.grad
        self._names, self._params = [*trained], [*trained.values()]
        self._bucket_bytes, self._first_bucket_bytes = bucket_bytes, min(first_bucket_bytes, bucket_bytes)
        # In the first backward of all gradients, in their order; later of those that no bucket has counted yet.
        self._arrivals = Arrivals()
        self._places: dict[int, tuple[Bucket, int]] = {}
        self._num_started = 0
        # True in a backward that reaches a parameter, as torch.autograd.grad() may not: all ranks take part.
        self._is_shared = False
        # Number of the backward at whose end autograd calls finish(); the outermost one if they are nested.
        self._backward: int | None = None
        # Autograd has a thread for each device.
        self._lock = threading.RLock()
        self._nodes = [hooked_node(param, self, self._arrivals, index) for index, param in enumerate(self._params)]

    def forward_begins(self) -> None:
        """Complete a backward that raised an error, because other ranks may wait for its averages."""
        # A forward inside a backward is one that checkpointing repeats.
        if self._is_shared and current_backward() == -1:
            self._void()

    def backward_begins(self, *_: object) -> None:
        """Hook of each output of forward: runs before any gradient arrives, in the outermost of nested backwards."""
        with self._lock:
            backward = current_backward()
            if self.averages and self._backward != backward:
                refuse_compiled_autograd()
                self._backward = backward
                call_at_end_of_backward(self.finish)
                # Now, not at the first gradient: the backward may fail before one arrives, while the other ranks wait.
                if any(map(will_run, self._nodes)):
                    self._share()

    def gradients_ready(self) -> None:
        """Hook: runs when autograd has reached parameters and, if there were gradients, added them to p.grad."""
        with self._lock:
            if not self.averages:
                self._arrivals.clear()
                return
            if not self._is_shared:
                if self._backward is None:
                    # The loss does not depend on a tensor that forward returned.
                    self.backward_begins()
                self._share()
            self._start_full()

    @torch.no_grad()
    def _start_full(self, start: Callable[[Bucket], None] = Bucket.start, at_end: bool = False) -> None:
        """Let the buckets count what has arrived, and start those that are full, or at the end all."""
        if not self.buckets:
            if at_end:
                self._lay_out(start)
            return
        self._arrivals.due = 0  # until the count is done, for other threads of autograd
        while self._arrivals:
            bucket, slot = self._places[self._arrivals.popleft()]
            bucket.arrive(slot)
        # Always in the order of the list, so that all ranks start the same collectives in the same order.
        for bucket in self.buckets[self._num_started :]:
            if bucket.num_awaited and not at_end:
                self._arrivals.due = bucket.num_awaited
                break
            self._start(bucket, start)

    def finish(self) -> None:
        """Complete the backward.  Autograd calls this at its end."""
        if self._is_shared:
            self._average()
        self._backward = None

    def _share(self) -> None:
        if not self._is_shared:
            self._is_shared = True
            for bucket in self.buckets:
                bucket.begin()

    def _start(self, bucket: Bucket, start: Callable[[Bucket], None]) -> None:
        self._num_started += 1
        start(bucket)

    def _average(self) -> None:
        """Start the buckets that are left, wait for all, and let the averages become p.grad."""
        self._start_full(at_end=True)
        self._complete()
        for bucket in self.buckets:
            bucket.hand_out()
        self.num_backwards += 1

    def _void(self) -> None:
        """Fill every bucket that is not started yet with NaN, average it, and forget the backward."""
        self._arrivals.clear()
        self._start_full(Bucket.void, at_end=True)
        self._complete()
        for bucket in self.buckets:
            bucket.payload.flat.zero_()

    def _complete(self) -> None:
        with waiting("communication"):
            for number, bucket in enumerate(self.buckets, start=1):
                position = f"backward {self.num_backwards + 1}, bucket {number}"
                what = f"the gradients of {bucket.names_in_words} ({position}) were not averaged"
                with naming_missing_ranks(what, position, self.sync.group):
                    bucket.wait()
        self._is_shared, self._backward, self._num_started, self._arrivals.due = False, None, 0, 0

    def _lay_out(self, start: Callable[[Bucket], None]) -> None:
        """Make the buckets one by one and start each at once, so that only one bucket's gradients are held twice."""
        arrivals = [*self._arrivals]
        self._arrivals.clear()
        position = f"end of backward {self.num_backwards + 1}"
        with naming_missing_ranks("agreeing on the buckets failed", position, self.sync.group):
            times = Counter(arrivals)
            for indices in self._packed(arrivals):
                names, params = [self._names[index] for index in indices], [self._params[index] for index in indices]
                bucket = Bucket(params, names, [times[index] or 1 for index in indices], self.sync)
                self.buckets.append(bucket)
                for slot, index in enumerate(indices):
                    self._places[index] = (bucket, slot)
                    for _ in range(times[index]):
                        bucket.arrive(slot)
                self._start(bucket, start)

    def _packed(self, arrivals: Sequence[int]) -> list[list[int]]:
        """Return which parameters share a bucket, by index, in the order in which gradients arrived on rank 0."""
        last = {index: time for time, index in enumerate(arrivals)}
        # Parameters without a gradient come last, so that a bucket which waits for one delays no other bucket.  They
        # are in reverse order, in which a backward most likely reaches them.
        order = sorted(reversed(range(len(self._params))), key=lambda index: last.get(index, len(arrivals)))
        return assign_buckets(
            [param.nbytes for param in self._params],
            [(param.dtype, param.device) for param in self._params],
            self.sync.of_rank_0(order, self._params[0].device),
            self._first_bucket_bytes,
            self._bucket_bytes,
        )
