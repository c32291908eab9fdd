"""Small datasets in the files of the real ones."""

import struct
from pathlib import Path

import torch
from torch import Tensor

from train import datasets


def idx_bytes(array: Tensor) -> bytes:
    """A uint8 array in the IDX format."""
    header = bytes([0, 0, 8, array.dim()]) + struct.pack(f">{array.dim()}I", *array.shape)
    return header + array.contiguous().numpy().tobytes()


def write_split(folder: Path, images: Tensor, labels: Tensor, prefix: str = "train") -> None:
    """Images and labels under the names that torchvision gives the two files of a split."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx_bytes(images))
    (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))


def write_small_mnist(data_root: Path, num_train: int, num_validation: int) -> None:
    """The first synthetic samples under the names of MNIST's files."""
    for split, prefix, length in (("train", "train", num_train), ("validation", "t10k", num_validation)):
        samples = datasets.load("synthetic", "", "train" if split == "train" else "validation", seed=0)
        images, labels = zip(*(samples[index % len(samples)] for index in range(length)), strict=True)
        write_split(data_root / "MNIST" / "raw", torch.cat(images), torch.tensor(labels, dtype=torch.uint8), prefix)
