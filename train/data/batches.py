"""Batches on this rank's device: samples stay integers until they are cast and normalised, a whole batch at a time."""

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from train.data.reading import Augmented, Stream
from train.data.sampler import ShardSampler
from train.errors import UserError
from train.world.signals import SIGNALS, stop_with_parent

# The part of a GPU's free memory that a dataset may take.
_MEMORY_SHARE = 0.25


class Batches:
    """Iterates over batches on `device`, as `collate` makes them from the samples of one step.

    Of the project's datasets these are (inputs, targets): float32 (n, C, H, W), normalised, and int64 (n); or tokens,
    int64 (n, T), and their targets, int64 (n, T).

    Args:
        samples: what to read: any map-style dataset, or a stream.
        steps: for each step the indices of its samples; n may differ between steps.  A step without indices gives
            sample 0 twice, because a rank without samples needs inputs, too; the caller must not count them.
            A ShardSampler's seed and epoch decide how samples are augmented.
        input: `memory` picks each batch by index from all samples, which it moves to the GPU if they fit there.
            `loader` reads them one by one in the processes of a DataLoader.  `auto` takes memory for the project's
            datasets.
        workers: processes of the DataLoader.  collate: makes a batch of samples, as torch's default does.
    On CUDA a separate stream prepares each batch while the device computes on the batch before it.
    """

    def __init__(
        self,
        samples: Any,
        steps: Iterable[list[int]],
        device: torch.device,
        input: str = "auto",
        workers: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self.device = device
        self._is_ours = hasattr(samples, "mean") and callable(getattr(samples, "tensors", None))
        varies = not self._is_ours and not isinstance(samples, TensorDataset)
        if input == "memory" or (input == "auto" and self._is_ours):
            self._raw_batches: Iterable[Any] = _InMemory(samples, steps, device)
        else:
            read = Stream if isinstance(samples, IterableDataset) else Augmented
            source: Any = read(
                samples, getattr(steps, "seed", 0), varies or collate is not None, collate or default_collate
            )
            keys: Any = Keys(steps)
            self._raw_batches = DataLoader(
                source,
                batch_sampler=keys,
                num_workers=workers,
                collate_fn=lambda batch: batch,
                generator=torch.Generator(),  # otherwise it draws from the process's
                pin_memory=device.type == "cuda",
                persistent_workers=workers > 0 and self._is_ours,  # another dataset may change between epochs
                worker_init_fn=init_worker,
                # Forked: a script needs no guard of its main part, and what it reads need not be picklable.
                multiprocessing_context="fork" if workers > 0 else None,
            )
        of_channels = (samples.std, samples.mean) if self._is_ours else ((), ())
        std, mean = (
            torch.tensor(numbers, dtype=torch.float32, device=device).view(1, -1, 1, 1) for numbers in of_channels
        )
        self._normalises = mean.numel() > 0
        self._scale, self._shift = 1 / (255 * std), mean / std
        # One stream for all epochs: freed memory stays with its stream, so each new stream would waste a batch or two.
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __iter__(self) -> Iterator[Any]:
        with deaf():
            raw = iter(self._raw_batches)
        return map(self._prepare, raw) if self._side is None else self._prepared_ahead(self._side, raw)

    def _prepare(self, batch: Any) -> Any:
        batch = tree_map_only(Tensor, lambda tensor: tensor.to(self.device, non_blocking=True), batch)
        if not self._is_ours:
            return batch
        inputs, targets = batch
        if not self._normalises:
            return inputs.long(), targets.long()
        # One pass casts and scales; (x/255 − mean)/std is x·scale − shift.
        return torch.mul(inputs, self._scale).sub_(self._shift), targets

    def _prepared_ahead(self, side: torch.cuda.Stream, raw: Iterator[Any]) -> Iterator[Any]:
        current = torch.cuda.current_stream(self.device)
        side.wait_stream(current)  # for the samples, if they were moved here just now
        batch = self._prepare_on(side, raw)
        while batch is not None:
            current.wait_stream(side)
            for tensor in tree_leaves(batch):
                # The allocator must not hand the memory to the side stream again while this one still reads it.
                if isinstance(tensor, Tensor):
                    tensor.record_stream(current)
            following = self._prepare_on(side, raw)
            yield batch
            batch = following

    def _prepare_on(self, stream: torch.cuda.Stream, raw: Iterator[Any]) -> Any:
        with torch.cuda.stream(stream):
            batch = next(raw, None)
            return None if batch is None else self._prepare(batch)


class _InMemory:
    def __init__(self, samples: Any, steps: Iterable[list[int]], device: torch.device) -> None:
        self.inputs, self.targets = samples.tensors()
        self.steps, self.device = steps, device
        size_bytes = self.inputs.nbytes + self.targets.nbytes
        if device.type == "cuda" and size_bytes <= _MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]:
            self.inputs, self.targets = self.inputs.to(device), self.targets.to(device)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        pinned = self.device.type == "cuda"  # only such memory is copied without stopping the host
        for indices in self.steps:
            chosen = torch.tensor(indices or [0, 0], dtype=torch.int64, pin_memory=pinned)
            chosen = chosen.to(self.inputs.device, non_blocking=True)
            inputs, targets = self.inputs.index_select(0, chosen), self.targets.index_select(0, chosen)
            if pinned and not inputs.is_cuda:
                inputs, targets = inputs.pin_memory(), targets.pin_memory()
            yield inputs, targets


@dataclass(frozen=True)
class Keys:
    """Steps of a sampler, as (epoch, index), because a DataLoader's workers outlive epochs; sample 0 twice if empty."""

    steps: Iterable[list[int]]

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for indices in self.steps:
            epoch = self.steps.epoch if isinstance(self.steps, ShardSampler) else 0
            yield [(epoch, index) for index in indices or [0, 0]]


@contextmanager
def deaf() -> Iterator[None]:
    """Block the signals that ask for an end in processes that are forked in the block.

    A scheduler, like Ctrl-C, signals all processes of a job, but a rank needs its workers to finish its step.
    """
    former = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def init_worker(worker: int) -> None:
    """End at once with the rank: a worker also has its connections open, and its peers would not see them close."""
    stop_with_parent(signal.SIGKILL)


def pieces(batch: Any, sizes: Sequence[int], num_blanks: int = 2) -> list[Any]:
    """Return the batch cut along the first dimension of its tensors into as many samples as `sizes` say.

    A piece of size 0 has `num_blanks` samples of the batch that the caller must not count: a rank that takes part
    without samples needs inputs.  Raises UserError if something has to be cut that cannot be.
    """
    if len(sizes) == 1 and (sizes[0] or num_blanks):
        return [batch]
    tensors = (leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim)
    num = sum(sizes) or len(next(tensors, ()))
    *starts, _ = accumulate(sizes, initial=0)
    blank = [at % max(1, num) for at in range(num_blanks)]
    cuts = [slice(at, at + size) if size else blank for at, size in zip(starts, sizes, strict=True)]
    is_column = partial(_is_column, num=num)
    return [tree_map(partial(_taken, cut=cut, num=num), batch, is_leaf=is_column) for cut in cuts]


def _is_column(part: Any, num: int) -> bool:
    """Return True for one word or number a sample, as torch's default_collate leaves words."""
    return isinstance(part, list | tuple) and len(part) == num and all(isinstance(x, str | int | float) for x in part)


def _taken(leaf: Any, cut: slice | list[int], num: int) -> Any:
    if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == num:
        return leaf[cut]
    if _is_column(leaf, num):
        return [leaf[at] for at in (range(num)[cut] if isinstance(cut, slice) else cut)]
    if leaf is None or isinstance(leaf, str | int | float) or (isinstance(leaf, Tensor) and not leaf.ndim):
        return leaf
    what = f"a tensor of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else f"a {type(leaf).__name__}"
    raise UserError(
        f"a batch of {num} samples holds {what}, which cannot be cut into micro-batches: let the collate function make "
        f"tensors with {num} rows, in dicts, lists or tuples, or give no micro_batches"
    )
