"""Pictures in folders, one folder per class, as torchvision's ImageFolder reads them; training pictures are augmented.

DATA_ROOT/train/CLASS/*.png (or .jpg, …) and DATA_ROOT/val/CLASS/*.  Pictures become RGB squares of 224 pixels,
or of the smaller side of the first training picture if that is less.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from train.datasets import Samples, Split
from train.errors import UserError

_LARGEST = 224
# A picture is scaled to this multiple of the crop from its middle, as in torchvision's reference for ImageNet.
_MARGIN = 256 / 224


@dataclass(frozen=True)
class FolderSamples:
    """One split, read from the files picture by picture; see train.datasets.Samples.

    varies: cropped and flipped at random by torchvision's transforms v2, differently in each epoch.
    """

    files: Any  # torchvision's ImageFolder
    shape: tuple[int, int, int]
    num_classes: int
    varies: bool
    # The values of ImageNet's training pictures; other photographs have similar ones.
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Read one picture and its class.  Raises UserError if the file is no picture."""
        try:
            image, label = self.files[index]
        except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises for damaged files
            file = self.files.samples[index][0]
            raise UserError(f"cannot read the picture {file}: {error}. Replace or remove it") from None
        return image, label

    def tensors(self) -> tuple[Tensor, Tensor]:
        images, labels = zip(*(self[index] for index in range(len(self))), strict=True)
        return torch.stack(images), torch.tensor(labels)


def load(data_root: Path, split: Split, seed: int) -> Samples:
    """List the files of DATA_ROOT/train or DATA_ROOT/val; pictures are read when they are needed.

    Raises UserError if folders are missing or empty, or if the splits have different classes.
    """
    from PIL import Image
    from torchvision.transforms import v2  # here, because it takes seconds

    train, validation = (_list_files(data_root / folder) for folder in ("train", "val"))
    if train.classes != validation.classes:
        differing = sorted(set(train.classes) ^ set(validation.classes))
        raise UserError(
            f"{data_root}: train/ and val/ need the same classes, but only one of them has {', '.join(differing)}"
        )
    with Image.open(train.samples[0][0]) as first:
        size = min(_LARGEST, *first.size)
    files = train if split == "train" else validation
    changes = [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()]
    if split == "validation":
        changes = [v2.Resize(size if size < _LARGEST else round(size * _MARGIN), antialias=True), v2.CenterCrop(size)]
    files.transform = v2.Compose([v2.PILToTensor(), *changes])
    return FolderSamples(files, (3, size, size), len(files.classes), varies=split == "train")


def _list_files(folder: Path) -> Any:
    from torchvision.datasets import ImageFolder

    try:
        return ImageFolder(str(folder))
    except FileNotFoundError as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{folder} holds no pictures: {reason}. --data-root must hold train/CLASS/… and val/CLASS/…"
        ) from None
