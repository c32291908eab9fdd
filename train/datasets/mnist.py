"""Handwritten digits (LeCun, Cortes, Burges): 60,000 and 10,000 grey images of 28×28."""

from pathlib import Path

from train.datasets import Samples, Split, _torchvision


def load(data_root: Path, split: Split, seed: int) -> Samples:
    return _torchvision.load_split("MNIST", data_root, split, mean=0.1307, std=0.3081)


def download(data_root: Path) -> None:
    _torchvision.download("MNIST", data_root)
