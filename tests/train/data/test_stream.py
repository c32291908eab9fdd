"""A stream in one's own loop: any number of processes trains on the same samples, with the same random draws."""

import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tests.ranks import launched
from train import Run, UserError


class _Noisy(IterableDataset[Tensor]):
    """Eleven samples, in another order in each epoch, with noise drawn while they are read."""

    epoch: int

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 11

    def __iter__(self) -> Iterator[Tensor]:
        for number in range(11):
            yield torch.full((3,), float(3 * number % 11 + self.epoch)) + torch.randn(3)


class _Shared(_Noisy):
    """Gives each rank other samples, as DistributedDataParallel needs it."""

    def __iter__(self) -> Iterator[Tensor]:
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        return (sample for number, sample in enumerate(super().__iter__()) if number % world_size == rank)


class _Short(_Noisy):
    def __iter__(self) -> Iterator[Tensor]:
        return islice(super().__iter__(), 7)


class _Once(_Noisy):
    def __iter__(self) -> Iterator[Tensor]:
        self.left = getattr(self, "left", super().__iter__())
        return self.left


class _Endless(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        while True:
            yield torch.ones(3)


def _trained(folder: Path | None, max_steps: int | None = None) -> list[float]:
    """Train two epochs of 4, 4 and 3 samples; return the weights, and the means of an evaluation after each epoch."""
    saved = {"checkpoint_dir": folder, "resume": "auto"} if folder else {}
    run, stream, validation = Run(seed=3, max_steps=max_steps, **saved), _Noisy(), _Noisy()
    model = run.wrap(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    run.restore(model=model, optimizer=optimizer)
    means: list[float] = []
    for _ in run.epochs(2):
        for batch in run.batches(stream, 4):
            run.step(lambda samples: model(samples).square().mean(), batch, optimizer)
        means += run.evaluate(lambda samples: {"loss": model(samples).square().mean()}, validation, 4).values()
    return [x for param in model.parameters() for x in param.flatten().tolist()] + means


def test_a_stream_trains_the_same_on_any_number_of_processes() -> None:
    alone = launched(1, _trained, None)[0]
    for found in launched(3, _trained, None):
        assert found == pytest.approx(alone, rel=1e-5)


def test_a_stream_is_continued_at_the_sample_on_another_number_of_processes(tmp_path: Path) -> None:
    for world_size, max_steps in ((2, 2), (1, 6)):
        found = launched(world_size, _trained, tmp_path, max_steps)[0]
    assert found[:4] == pytest.approx(launched(1, _trained, None)[0][:4], rel=1e-5)


def _loader() -> Any:
    return DataLoader(TensorDataset(torch.ones(11, 3)), batch_size=4)


def _refused(kind: Callable[[], Any], workers: int) -> str:
    run = Run(seed=3)
    model = run.wrap(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with pytest.raises(UserError) as refusal:
        for _ in run.epochs(1):
            for batch in run.batches(kind(), 4, workers=workers):
                run.step(lambda samples: model(samples).square().mean(), batch, optimizer)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("kind", "workers", "says"),
    [
        (_Endless, 0, "a _Endless has no len(), which says how many samples an epoch has: give it a __len__()"),
        (_loader, 0, "a DataLoader has no samples by index: give the dataset itself, and say by batch_size=, collate="),
        (_Noisy, 2, "each worker would read the whole stream: give workers=1"),
        (_Shared, 0, "rank 1: the stream has another len() or first sample than on rank 0"),
        (
            _Once,
            0,
            "the stream gave another first sample at its second start: its __iter__() must start from the beginning",
        ),
        (_Short, 0, "the stream ended after 7 of the 11 samples that its len() promises"),
    ],
)
def test_a_stream_that_cannot_be_shared_exactly_is_refused(kind: Callable[[], Any], workers: int, says: str) -> None:
    assert any(says in said for said in launched(2, _refused, kind, workers))
