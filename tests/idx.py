"""Small datasets in the files of the real ones."""

from __future__ import annotations

import struct
from pathlib import Path

import torch
from torch import Tensor

from train import datasets


def idx_bytes(array: Tensor) -> bytes:
    """A uint8 array in the IDX format."""
    shape = array.shape
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + array.numpy().tobytes()


def write_small_mnist(data_root: Path, num_train: int, num_validation: int) -> None:
    """The first synthetic samples under the names of MNIST's files."""
    folder = data_root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for split, prefix, length in (("train", "train", num_train), ("validation", "t10k", num_validation)):
        samples = datasets.load("synthetic", "", "train" if split == "train" else "validation", seed=0)
        images, labels = zip(*(samples[index] for index in range(length)), strict=True)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx_bytes(torch.cat(images)))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx_bytes(torch.tensor(labels, dtype=torch.uint8)))
