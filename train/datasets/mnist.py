"""Handwritten digits (LeCun, Cortes, Burges): 60,000 and 10,000 grey images of 28×28."""

from functools import partial

from train.datasets import _torchvision

load = partial(_torchvision.load_split, "MNIST", mean=0.1307, std=0.3081)
download = partial(_torchvision.download, "MNIST")
