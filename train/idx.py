"""MNIST-like datasets: four files in the IDX format, where torchvision keeps them.

Source: the format's description on the MNIST page of LeCun, Cortes and Burges; torchvision.datasets.MNIST.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import socket
import struct
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from train.errors import UserError

_DOWNLOAD_TIMEOUT_S = 30.0
_PREFIX = {"train": "train", "validation": "t10k"}


@dataclass(frozen=True)
class IdxSamples:
    """One split, whole in memory; see train.datasets.Samples."""

    images: Tensor
    labels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    num_classes: int = 10

    @property
    def shape(self) -> tuple[int, int, int]:
        _, channels, height, width = self.images.shape
        return channels, height, width

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], int(self.labels[index])

    def tensors(self) -> tuple[Tensor, Tensor]:
        return self.images, self.labels


def load_idx_samples(folder: Path, split: str, mean: float, std: float) -> IdxSamples:
    """Read the images and labels of a split from `folder`; UserError if a file is missing, damaged or does not fit."""
    problems = []
    arrays = []
    for kind in ("images-idx3", "labels-idx1"):
        try:
            arrays.append(read_idx(folder / f"{_PREFIX[split]}-{kind}-ubyte"))
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("\n".join(problems))
    images, labels = arrays
    if images.dim() != 3 or labels.dim() != 1 or len(images) != len(labels):
        raise UserError(
            f"{folder}: the {split} images have shape {tuple(images.shape)} and the labels {tuple(labels.shape)}; "
            "they must be (N, height, width) and (N). Replace both files by a pair that belongs together"
        )
    if int(labels.max()) >= IdxSamples.num_classes:
        raise UserError(
            f"{folder}: a {split} label is {int(labels.max())}, but classes count from 0 to "
            f"{IdxSamples.num_classes - 1}. Replace the file with an undamaged copy"
        )
    return IdxSamples(images.unsqueeze(1), labels.long(), (mean,), (std,))


def read_idx(file: Path) -> Tensor:
    """The uint8 array in an IDX file; also in `file`.gz if `file` itself is not there.

    Raises UserError if neither is there, or if the bytes are not as many as the header says.
    """
    packed = file.with_name(file.name + ".gz")
    source = file if file.exists() else packed
    try:
        content = source.read_bytes()
        content = content if source == file else gzip.decompress(content)
    except FileNotFoundError:
        raise UserError(
            f"{file} is missing: put it there (or {packed.name}), or give --data-root the folder that holds "
            f"{file.parent.parent.name}/{file.parent.name}/{file.name}"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read {source}: {error}. Replace it with an undamaged, readable copy") from None
    # Two zero bytes, the type (8 is uint8), the number of dimensions, then each dimension in big-endian 32 bits.
    dims = content[3] if len(content) > 3 and content[:3] == b"\0\0\x08" else 0
    start = 4 + 4 * dims
    if not dims or len(content) < start:
        raise UserError(
            f"{source} is not an IDX file of bytes: it begins with {content[:4].hex(' ') or 'nothing'}. "
            "Replace it with the dataset's own file"
        )
    shape = struct.unpack(f">{dims}I", content[4:start])
    expected = start + math.prod(shape)
    if len(content) != expected or expected == start:
        what = "empty" if expected == start else "truncated" if len(content) < expected else "too long"
        raise UserError(
            f"{source} is {what}: its header says {'×'.join(map(str, shape))}, {expected} bytes in all, "
            f"but it has {len(content)}. Replace it with an undamaged copy"
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).view(shape)


def download_idx(dataset: str, data_root: Path) -> None:
    """Let torchvision fetch and verify what is absent of its `dataset`; without a network nothing happens.

    Silent on failure, because reading the files says better what is missing and where it belongs.
    """
    folder = data_root / dataset / "raw"
    names = [f"{prefix}-{kind}-ubyte" for prefix in _PREFIX.values() for kind in ("images-idx3", "labels-idx1")]
    if all((folder / name).exists() or (folder / f"{name}.gz").exists() for name in names):
        return
    import torchvision.datasets  # here, because it takes seconds

    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_DOWNLOAD_TIMEOUT_S)
    try:
        with contextlib.suppress(OSError, RuntimeError), contextlib.redirect_stdout(sys.stderr):
            getattr(torchvision.datasets, dataset)(data_root, download=True)
    finally:
        socket.setdefaulttimeout(before)
