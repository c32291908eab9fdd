"""Augmented samples: what is drawn for one depends on the seed, the epoch and its index, and on nothing else."""

import importlib
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from train.data.batches import Batches
from train.data.sampler import ShardSampler

_SAMPLES, _EPOCHS, _BATCH = 30, 2, 10
Drawn = dict[tuple[int, int], bytes]


@dataclass(frozen=True)
class _Noise:
    """Every pixel is random; so two images are equal only if their random numbers were."""

    shape: tuple[int, int, int] = (1, 4, 4)

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.randint(0, 256, self.shape, dtype=torch.uint8)
        image[0, 0] = torch.from_numpy(np.random.randint(0, 256, 4))
        image[0, 1] = torch.tensor([random.randrange(256) for _ in range(4)])
        return image, index


def _drawn(world_size: int, workers: int, seed: int = 3, first_step: int = 0, make: Any = _Noise) -> Drawn:
    """What each sample is in each epoch, by its index, from a step of the first epoch on."""
    found: Drawn = {}
    for rank in range(world_size):
        sampler = ShardSampler(_SAMPLES, _BATCH, rank, world_size, seed)
        sampler.load_state_dict(sampler.state_dict() | {"step": first_step})
        batches: Any = Batches(make(), sampler, torch.device("cpu"), "loader", workers)
        for epoch in range(1, _EPOCHS + 1):
            for images, labels in batches:
                pairs = zip(labels.tolist(), images, strict=True)
                found |= {(epoch, label): image.numpy().tobytes() for label, image in pairs}
            sampler.set_epoch(epoch + 1)
    return found


def _states() -> str:
    return f"{torch.get_rng_state().tolist()} {random.getstate()} {np.random.get_state()[1].tolist()}"  # type: ignore[index]


@pytest.fixture(scope="module")
def alone() -> Drawn:
    return _drawn(1, 0)


def test_no_two_samples_draw_the_same_and_the_generators_of_the_process_stay(alone: Drawn) -> None:
    before = _states()
    assert _drawn(1, 0, seed=4).keys() == alone.keys()
    assert _states() == before
    assert len(alone) == len({*alone.values()}) == _SAMPLES * _EPOCHS


@pytest.mark.parametrize(("world_size", "workers"), [(3, 0), (1, 2)])
def test_each_sample_draws_the_same_on_any_number_of_ranks_and_workers(
    alone: Drawn, world_size: int, workers: int
) -> None:
    assert _drawn(world_size, workers) == alone


def test_each_sample_draws_the_same_after_a_resume_and_something_else_with_another_seed(alone: Drawn) -> None:
    rest = _drawn(2, 0, first_step=2)
    assert rest.items() < alone.items()
    assert not {*_drawn(1, 0, seed=4).values()} & {*alone.values()}


class _Kept(Dataset[tuple[Tensor, int]]):
    """Draws with a generator that it keeps, as a transform of a library does."""

    def __init__(self, transform: Callable[[int], Any]) -> None:
        self.transforms = [transform]

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.as_tensor(np.asarray(self.transforms[0](index))), index


class _Lazy:
    """Makes its generator when it is first called, as one that must not be copied to workers is made."""

    __slots__ = ("own",)
    shared = np.random.RandomState(0)

    def __call__(self, index: int) -> Any:
        self.own = getattr(self, "own", None) or np.random.default_rng()
        return [self.own.random(), self.shared.uniform(), _helper()]


_OF_MODULE = SimpleNamespace(draws=random.Random(0))  # as a transform of a library
_PICTURE = np.arange(32 * 32 * 3, dtype=np.uint8).reshape(32, 32, 3)


def _helper() -> float:
    return float(_OF_MODULE.draws.random())


def _torch_and_numpy() -> _Kept:
    of_torch, of_numpy = torch.Generator().manual_seed(0), np.random.default_rng(0)
    return _Kept(lambda index: [float(torch.rand(1, generator=of_torch)), of_numpy.random()])


def _albumentations() -> _Kept:
    library = _library("albumentations")
    crop, noise, holes = library.RandomCrop(16, 16), library.GaussNoise(p=1), library.CoarseDropout(p=1)
    transform = library.Compose([crop, library.OneOf([noise, holes], p=1), library.HorizontalFlip(p=0.5)], seed=1)
    return _Kept(lambda index: transform(image=_PICTURE)["image"])


def _torchvision() -> _Kept:
    v2 = _library("torchvision.transforms.v2")
    picture = torch.from_numpy(_PICTURE).permute(2, 0, 1)
    return _Kept(v2.Compose([lambda index: picture, v2.RandomCrop(16), v2.ColorJitter(0.4, 0.4), v2.RandAugment()]))


def _torchaudio() -> _Kept:
    masking = _library("torchaudio.transforms").SpecAugment(2, 10, 2, 10)
    return _Kept(lambda index: masking(torch.arange(1.0, 2001).view(1, 40, 50)))


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:  # torchaudio of another CUDA than torch's
        pytest.skip(f"{name} cannot be imported, a library that the project does not need: {error}")


@pytest.mark.parametrize("make", [lambda: _Kept(_Lazy()), _torch_and_numpy, _albumentations, _torchvision, _torchaudio])
def test_generators_that_a_dataset_keeps_draw_by_seed_epoch_and_index_alone(make: Callable[[], _Kept]) -> None:
    before = _OF_MODULE.draws.getstate()
    alone = _drawn(1, 0, make=make)
    assert len(alone) == _SAMPLES * _EPOCHS and len({*alone.values()}) > 0.9 * len(alone)
    assert _drawn(2, 0, make=make) == _drawn(1, 2, make=make) == alone
    assert _drawn(2, 0, first_step=2, make=make).items() < alone.items()
    assert _OF_MODULE.draws.getstate() == before


def test_two_generators_of_one_sample_draw_different_numbers_and_of_a_system_random_it_is_said_once() -> None:
    first, second = (np.random.default_rng(0) for _ in range(2))
    found = _drawn(1, 0, make=lambda: _Kept(lambda index: [first.random(), second.random()]))
    assert all(len({*np.frombuffer(numbers)}) == 2 for numbers in found.values())
    none = random.SystemRandom()
    with pytest.warns(match=r"dataset\.transforms\.0\.none is a SystemRandom, whose numbers cannot be") as said:
        warnings.simplefilter("default")
        _drawn(1, 0, make=lambda: _Kept(lambda index: [index, id(none)]))
    assert len(said) == 1
