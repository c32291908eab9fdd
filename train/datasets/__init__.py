"""Datasets, one file each, and what they share: `load(data_root, split, seed)` makes a Samples."""

from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol

import torch.distributed as dist
from torch import Tensor

from train.world.environment import World

Split = Literal["train", "validation"]


class Samples(Protocol):
    """Samples of one split: labelled images, or rows of tokens, where the target of a token is the next token.

    A map-style torch dataset that can also return everything at once, always the same.  An item is an image as uint8
    (C, H, W) and its class, or tokens (T,) as uint8 or int32 and their targets as int64 (T,).
    shape: of one sample, (C, H, W) or (T,).  num_classes: number of values that a label, or a token, may have.
    mean, std: of the training images' channels, pixels scaled to 0 … 1; empty for tokens, which stay as they are.
    tensors: all images (N, C, H, W) and all classes (N,); or all tokens and targets, (N, T) each.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def mean(self) -> tuple[float, ...]: ...
    @property
    def std(self) -> tuple[float, ...]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> tuple[Tensor, int | Tensor]: ...
    def tensors(self) -> tuple[Tensor, Tensor]: ...


def load(name: str, data_root: str, split: Split, seed: int) -> Samples:
    """Return the split of the dataset in the file `name`.py.  Raises UserError naming missing or damaged files."""
    samples: Samples = import_module(f"train.datasets.{name}").load(Path(data_root), split, seed)
    return samples


def download(name: str, data_root: str, world: World) -> None:
    """Fetch the dataset's files if they are absent: rank 0, then one process of each other node.  A collective."""
    fetch = getattr(import_module(f"train.datasets.{name}"), "download", None)
    for turn in (world.rank == 0, world.rank != 0 and world.local_rank == 0):
        if turn and fetch is not None:
            fetch(Path(data_root))
        dist.barrier()
