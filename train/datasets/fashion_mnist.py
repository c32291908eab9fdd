"""Zalando articles (Xiao, Rasul, Vollgraf, arXiv:1708.07747): 60,000 and 10,000 grey images of 28×28."""

from functools import partial

from train.datasets import _torchvision

load = partial(_torchvision.load_split, "FashionMNIST", mean=0.2860, std=0.3530)
download = partial(_torchvision.download, "FashionMNIST")
