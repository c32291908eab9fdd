"""Augmented samples: what is drawn for one depends on the seed, the epoch and its index, and on nothing else."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from train.data.batches import Batches
from train.data.sampler import ShardSampler

_SAMPLES, _EPOCHS, _BATCH = 30, 2, 10
Drawn = dict[tuple[int, int], bytes]


@dataclass(frozen=True)
class _Noise:
    """Every pixel is random; so two images are equal only if their random numbers were."""

    varies: bool = True
    shape: tuple[int, int, int] = (1, 4, 4)
    num_classes: int = _SAMPLES
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.3,)

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.randint(0, 256, self.shape, dtype=torch.uint8)
        image[0, 0] = torch.from_numpy(np.random.randint(0, 256, 4))
        image[0, 1] = torch.tensor([random.randrange(256) for _ in range(4)])
        return image, index


def _drawn(world_size: int, workers: int, seed: int = 3, first_step: int = 0) -> Drawn:
    """What each sample is in each epoch, by its index, from a step of the first epoch on."""
    found: Drawn = {}
    for rank in range(world_size):
        sampler = ShardSampler(_SAMPLES, _BATCH, rank, world_size, seed)
        sampler.load_state_dict(sampler.state_dict() | {"step": first_step})
        batches: Any = Batches(_Noise(), sampler, torch.device("cpu"), "loader", workers)
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
