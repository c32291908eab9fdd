"""Handwritten digits that the package scikit-learn holds: 1,797 grey images of 8×8, the last fifth for validation."""

from pathlib import Path

import torch

from train.config import setting
from train.datasets import Split
from train.datasets._torchvision import TensorSamples
from train.errors import UserError

_NUM_TRAIN, _WHITE = 1437, 16


def load(data_root: Path, split: Split, seed: int) -> TensorSamples:
    """Return the split, without any file under `data_root`.  Raises UserError if scikit-learn is not installed."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        message = f"{setting('dataset')} digits needs the package scikit-learn: pip install scikit-learn"
        raise UserError(message) from None
    part = slice(_NUM_TRAIN) if split == "train" else slice(_NUM_TRAIN, None)
    images, labels = (torch.from_numpy(array[part]) for array in (load_digits().images, load_digits().target))
    pixels = (images * (255 / _WHITE)).round().to(torch.uint8)
    return TensorSamples(pixels.unsqueeze(1), labels.long(), mean=(0.305,), std=(0.377,))
