"""MNIST and similar datasets: torchvision fetches and reads the files; errors here name what is missing or damaged."""

import contextlib
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from train.datasets import Split
from train.errors import UserError

_DOWNLOAD_TIMEOUT_S = 30.0
_PREFIX = {"train": "train", "validation": "t10k"}
_NUM_CLASSES = 10


@dataclass(frozen=True)
class TensorSamples:
    """One split, whole in memory: images uint8 (N, C, H, W), labels int64 (N); see train.datasets.Samples."""

    images: Tensor
    labels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    num_classes: int = _NUM_CLASSES
    varies: ClassVar[bool] = False

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


def load_split(dataset: str, data_root: Path, split: Split, seed: int, *, mean: float, std: float) -> TensorSamples:
    """Read DATA_ROOT/`dataset`/raw, where torchvision keeps its files.

    Raises UserError with every file that is missing or damaged, and if images and labels do not fit each other.
    """
    from torchvision.datasets import mnist  # here, because it takes seconds

    folder = data_root / dataset / "raw"
    problems: list[str] = []
    images = _read(folder / f"{_PREFIX[split]}-images-idx3-ubyte", mnist.read_image_file, problems)
    labels = _read(folder / f"{_PREFIX[split]}-labels-idx1-ubyte", mnist.read_label_file, problems)
    if images is None or labels is None:
        raise UserError("\n".join(problems))
    if len(images) != len(labels) or not 0 <= int(labels.min()) <= int(labels.max()) < _NUM_CLASSES:
        raise UserError(
            f"{folder}: the {split} files hold {len(images)} images, {len(labels)} labels and classes up to "
            f"{int(labels.max())}; expected as many labels as images, and classes from 0 to {_NUM_CLASSES - 1}. "
            "Replace both files with an undamaged pair"
        )
    return TensorSamples(images.unsqueeze(1), labels, (mean,), (std,))


def download(dataset: str, data_root: Path) -> None:
    """Let torchvision fetch what is missing; a failure is only a note on stderr, as reading then names the files."""
    folder = data_root / dataset / "raw"
    names = [f"{prefix}-{kind}-ubyte" for prefix in _PREFIX.values() for kind in ("images-idx3", "labels-idx1")]
    if all((folder / name).exists() for name in names):
        return
    import torchvision.datasets

    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_DOWNLOAD_TIMEOUT_S)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            getattr(torchvision.datasets, dataset)(data_root, download=True)
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())  # torchvision's text has a line for each mirror
        print(f"note: could not download {dataset} to {folder}: {reason}", file=sys.stderr, flush=True)
    finally:
        socket.setdefaulttimeout(before)


def _read(file: Path, reader: Callable[[str], Tensor], problems: list[str]) -> Tensor | None:
    if not file.exists():
        packed = file.with_name(f"{file.name}.gz")
        remedy = f"run gunzip {packed}" if packed.exists() else "put it there"
        problems.append(
            f"{file} is missing: {remedy}, or give --data-root the folder that holds "
            f"{file.parent.parent.name}/{file.parent.name}/{file.name}"
        )
        return None
    try:
        tensor = reader(str(file))
    # torchvision documents no type of error for a damaged file: a file that is too short raises at least four types.
    except Exception as error:
        reason = str(error) or "unexpected bytes"
        problems.append(f"cannot read {file}: {reason}. Replace it with an undamaged, readable copy")
        return None
    if not len(tensor):
        problems.append(f"{file} is empty. Replace it with an undamaged copy")
        return None
    return tensor
