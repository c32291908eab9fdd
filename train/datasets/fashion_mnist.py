"""Zalando articles (Xiao, Rasul, Vollgraf, arXiv:1708.07747): 60,000 and 10,000 grey images of 28×28."""

from pathlib import Path

from train.datasets import Samples, Split, _torchvision


def load(data_root: Path, split: Split, seed: int) -> Samples:
    return _torchvision.load_split("FashionMNIST", data_root, split, mean=0.2860, std=0.3530)


def download(data_root: Path) -> None:
    _torchvision.download("FashionMNIST", data_root)
