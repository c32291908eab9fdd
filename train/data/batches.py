"""Batches on this rank's device: samples stay integers until they are cast and normalised, a whole batch at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from train.data.augmentation import Augmented, Keys
from train.data.sampler import ShardSampler
from train.data.workers import init_worker, worker_context
from train.datasets import Samples
from train.errors import UserError
from train.world.cgroup import host_memory_bytes

# The part of the memory available to a process that its copy of a dataset may take.
_MEMORY_SHARE = 0.25

Batch = tuple[Tensor, Tensor]
Item = tuple[Tensor, int | Tensor]


class Batches:
    """Iterates over (images, labels): float32 (n, C, H, W), normalised, and int64 (n), both on `device`.

    For tokens: int64 (n, T) and their targets, int64 (n, T).

    Args:
        samples: what to read.
        steps: for each step the indices of its samples; n may differ between steps and may be 0.  For samples that
            vary, a ShardSampler: its seed and epoch decide how each is augmented.
        input: `memory` keeps all samples as uint8 on the device (in pinned host memory if they do not fit there)
            and picks each batch by index.  `loader` reads them one by one in the processes of a DataLoader.  `auto`
            takes memory if they fit and do not vary.
        workers: processes of the DataLoader.
        local_world_size: processes that share the host's memory, each with its own copy.
    On CUDA a separate stream prepares each batch while the device computes on the batch before it.
    """

    def __init__(
        self,
        samples: Samples,
        steps: Iterable[list[int]],
        device: torch.device,
        input: str = "auto",
        workers: int = 0,
        local_world_size: int = 1,
    ) -> None:
        self.device = device
        if samples.varies and input == "memory":
            raise UserError(
                "--input=memory would read each picture once, and augment it once for all epochs: give --input=loader"
            )
        available_bytes = _MEMORY_SHARE * host_memory_bytes() / local_world_size
        if input == "memory" or (
            input == "auto" and not samples.varies and len(samples) * _bytes_of(samples[0]) <= available_bytes
        ):
            self._raw_batches: Iterable[Batch] = _InMemory(samples, steps, device)
        else:
            source: Any = samples  # a map-style dataset need not inherit from Dataset
            keys: Any = steps
            if samples.varies:
                assert isinstance(steps, ShardSampler)
                source, keys = Augmented(samples, steps.seed), Keys(steps)
            self._raw_batches = DataLoader(
                source,
                batch_sampler=keys,
                num_workers=workers,
                collate_fn=partial(_collate, default_collate([source[1, 0] if samples.varies else samples[0]])),
                generator=torch.Generator(),  # otherwise it draws from the process's
                pin_memory=device.type == "cuda",
                persistent_workers=workers > 0,
                worker_init_fn=init_worker,
                multiprocessing_context=worker_context() if workers > 0 else None,
            )
        per_channel = (1, -1, 1, 1)
        self._normalises = len(samples.mean) > 0
        std = torch.tensor(samples.std, dtype=torch.float32, device=device).view(per_channel)
        mean = torch.tensor(samples.mean, dtype=torch.float32, device=device).view(per_channel)
        self._scale, self._shift = 1 / (255 * std), mean / std
        # One stream for all epochs: freed memory stays with its stream, so each new stream would waste a batch or two.
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __iter__(self) -> Iterator[Batch]:
        if self._side is not None:
            return self._prepared_ahead(self._side)
        return (self._prepare(images, labels) for images, labels in self._raw_batches)

    def _prepare(self, images: Tensor, labels: Tensor) -> Batch:
        images, labels = (part.to(self.device, non_blocking=True) for part in (images, labels))
        if not self._normalises:
            return images.long(), labels.long()
        # One pass casts and scales; (x/255 − mean)/std is x·scale − shift.
        return torch.mul(images, self._scale).sub_(self._shift), labels

    def _prepared_ahead(self, side: torch.cuda.Stream) -> Iterator[Batch]:
        current = torch.cuda.current_stream(self.device)
        side.wait_stream(current)  # for the samples, if they were moved here just now
        raw = iter(self._raw_batches)
        batch = self._prepare_on(side, raw)
        while batch is not None:
            current.wait_stream(side)
            for tensor in batch:
                # The allocator must not hand the memory to the side stream again while this one still reads it.
                tensor.record_stream(current)
            following = self._prepare_on(side, raw)
            yield batch
            batch = following

    def _prepare_on(self, stream: torch.cuda.Stream, raw: Iterator[Batch]) -> Batch | None:
        with torch.cuda.stream(stream):
            batch = next(raw, None)
            return None if batch is None else self._prepare(*batch)


class _InMemory:
    def __init__(self, samples: Samples, steps: Iterable[list[int]], device: torch.device) -> None:
        self.images, self.labels = samples.tensors()
        self.steps = steps
        if device.type == "cuda":
            size_bytes = self.images.nbytes + self.labels.nbytes
            if size_bytes <= _MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]:
                self.images, self.labels = self.images.to(device), self.labels.to(device)
            else:
                # Pinned, so that each batch is too.
                self.images, self.labels = self.images.pin_memory(), self.labels.pin_memory()

    def __iter__(self) -> Iterator[Batch]:
        # On CUDA only pinned memory is copied without stopping the host.
        pinned = torch.cuda.is_available() and (self.images.is_cuda or self.images.is_pinned())
        for indices in self.steps:
            chosen = torch.tensor(indices, dtype=torch.int64, pin_memory=pinned)
            chosen = chosen.to(self.images.device, non_blocking=True)
            images, labels = self.images.index_select(0, chosen), self.labels.index_select(0, chosen)
            if pinned and not images.is_cuda:
                images, labels = images.pin_memory(), labels.pin_memory()
            yield images, labels


def _bytes_of(item: Item) -> int:
    return sum(part.nbytes for part in item if isinstance(part, Tensor))


def _collate(example: Batch, items: list[Item]) -> Batch:
    """Return the items as one batch; without items an empty batch of the example's shapes and types."""
    images, labels = example
    return default_collate(items) if items else (images[:0], labels[:0])
