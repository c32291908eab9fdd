"""Handwritten digits (LeCun, Cortes, Burges): 60,000 and 10,000 grey images of 28×28."""

from __future__ import annotations

from pathlib import Path

from train.datasets import Samples, Split
from train.idx import download_idx, load_idx_samples


def load(data_root: Path, split: Split, seed: int) -> Samples:
    """Read DATA_ROOT/MNIST/raw."""
    return load_idx_samples(data_root / "MNIST" / "raw", split, mean=0.1307, std=0.3081)


def download(data_root: Path) -> None:
    """Fetch what is absent from torchvision's mirrors into DATA_ROOT/MNIST/raw."""
    download_idx("MNIST", data_root)
