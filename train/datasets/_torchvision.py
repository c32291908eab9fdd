"""MNIST and similar datasets: torchvision fetches and reads the files; errors here name what is missing or damaged."""

import contextlib
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from train.datasets import Split
from train.errors import UserError, first_line

_DOWNLOAD_TIMEOUT_S = 30.0
_NUM_CLASSES = 10


@dataclass(frozen=True)
class TensorSamples:
    """One split, whole in memory: images uint8 (N, C, H, W), labels int64 (N); see train.datasets.Samples."""

    images: Tensor
    labels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    num_classes: int = _NUM_CLASSES

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
    """Read DATA_ROOT/`dataset`/raw, where torchvision keeps its files.  Raises UserError if it cannot."""
    import torchvision.datasets  # here, because it takes seconds

    folder = data_root / dataset / "raw"
    try:
        found = getattr(torchvision.datasets, dataset)(data_root, train=split == "train")
        images, labels = found.data, found.targets
        if len(images) != len(labels) or not 0 <= int(labels.min()) <= int(labels.max()) < _NUM_CLASSES:
            what = f"{len(images)} images, {len(labels)} labels and classes up to {int(labels.max())}"
            raise ValueError(f"the {split} files hold {what}, not one label from 0 to {_NUM_CLASSES - 1} an image")
    # torchvision documents no type of error for a damaged file: one that is too short raises at least four types.
    except Exception as error:
        missing = [name for name in _files() if not (folder / name).exists()]
        why = f"{', '.join(missing)} missing" if missing else first_line(error)
        raise UserError(
            f"cannot read {dataset}: {why}. {folder} must hold torchvision's four files, undamaged and unpacked; "
            f"--data-root is the folder that holds {dataset}/raw"
        ) from None
    return TensorSamples(images.unsqueeze(1), labels, (mean,), (std,))


def download(dataset: str, data_root: Path) -> None:
    """Let torchvision fetch what is missing; a failure is only a note on stderr, as reading then names the files."""
    folder = data_root / dataset / "raw"
    if all((folder / name).exists() for name in _files()):
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


def _files() -> list[str]:
    return [f"{prefix}-{kind}-ubyte" for prefix in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
