"""Zalando articles (Xiao, Rasul, Vollgraf, arXiv:1708.07747): 60,000 and 10,000 grey images of 28×28."""

from __future__ import annotations

from pathlib import Path

from train.datasets import Samples, Split
from train.idx import download_idx, load_idx_samples


def load(data_root: Path, split: Split, seed: int) -> Samples:
    """Read DATA_ROOT/FashionMNIST/raw."""
    return load_idx_samples(data_root / "FashionMNIST" / "raw", split, mean=0.2860, std=0.3530)


def download(data_root: Path) -> None:
    """Fetch what is absent from torchvision's mirrors into DATA_ROOT/FashionMNIST/raw."""
    download_idx("FashionMNIST", data_root)
