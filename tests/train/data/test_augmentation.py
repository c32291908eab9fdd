"""Augmented samples: what is drawn for one depends on the seed, the epoch and its index, and on nothing else."""

import hashlib
import os
import random
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.ranks import make_trainer, run_ranks
from train import datasets
from train.data.reading import Augmented
from train.datasets import Samples
from train.trainer import Trainer
from train.world.environment import World

pytestmark = [pytest.mark.slow]
_SAMPLES, _EPOCHS, _BATCH = 50, 2, 10


@dataclass(frozen=True)
class _Noise:
    """Every pixel is random; so two images are equal only if their random numbers were."""

    varies: bool
    shape: tuple[int, int, int] = (1, 4, 4)
    num_classes: int = 5
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.3,)

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.randint(0, 256, self.shape, dtype=torch.uint8)
        image[0, 0] = torch.from_numpy(np.random.randint(0, 256, 4))
        image[0, 1] = torch.tensor([random.randrange(256) for _ in range(4)])
        return image, index % self.num_classes

    def tensors(self) -> tuple[Tensor, Tensor]:
        images, labels = zip(*(self[index] for index in range(_SAMPLES)), strict=True)
        return torch.stack(images), torch.tensor(labels)

    def sha256(self) -> str:
        return ""


class _Noted:
    """A trainer's batches; epoch, index and hash of each image are appended to a file before it is trained on."""

    def __init__(self, trainer: Trainer, file: Path, killed_at: int | None) -> None:
        assert trainer.run.position.sampler is not None
        self.batches, self.sampler = trainer.run.reading.training, trainer.run.position.sampler
        self.file, self.killed_at = file, killed_at

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in self.batches:
            indices = next(iter(self.sampler))
            with self.file.open("a") as file:
                for index, image in zip(indices, images, strict=True):
                    content = hashlib.sha256(image.numpy().tobytes()).hexdigest()
                    file.write(f"{self.sampler.epoch} {index} {content}\n")
            if (self.sampler.epoch - 1) * _SAMPLES // _BATCH + self.sampler.step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield images, labels


def _train(world: World, folder: Path, workers: int, killed_at: int | None) -> bool:
    """Train; return whether the generators of this process were left alone while the data were read."""

    def load(name: str, data_root: str, split: str, seed: int) -> Samples:
        return _Noise(varies=split == "train")

    kept = [f"--checkpoint-dir={folder / 'checkpoints'}", "--resume=auto", "--checkpoint-every=1"]
    flags = ["--model=mlp", "--device=cpu", f"--batch-size={_BATCH}", f"--epochs={_EPOCHS}", f"--workers={workers}"]
    with mock.patch.object(datasets, "load", load):
        trainer = make_trainer(world, *flags, *kept)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tobytes()
    next(iter(trainer.run.reading.training))
    now = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tobytes()
    trainer.run.reading.training = _Noted(trainer, folder / f"rank-{world.rank}", killed_at)
    trainer.fit()
    return torch.equal(states[0], now[0]) and states[1:] == now[1:]


def _noted(folder: Path) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    for file in folder.glob("rank-*"):
        for line in file.read_text().splitlines():
            epoch, index, content = line.split()
            assert found.setdefault((epoch, index), content) == content, "read again after a kill, the same"
    return found


def test_each_sample_is_augmented_as_in_an_undisturbed_run_after_a_kill_and_on_another_number_of_ranks(
    tmp_path: Path,
) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    assert run_ranks(2, _train, tmp_path / "whole", 1, None) == [True, True]
    whole = _noted(tmp_path / "whole")
    assert len(whole) == len({*whole.values()}) == _SAMPLES * _EPOCHS, "no two have equal random numbers"

    with pytest.raises(RuntimeError, match="died without a result"):
        run_ranks(2, _train, tmp_path / "killed", 0, 7)
    for world_size in (1, 3):
        folder = tmp_path / f"resumed on {world_size}"
        shutil.copytree(tmp_path / "killed", folder)
        before = len(_noted(folder))
        assert all(run_ranks(world_size, _train, folder, 0, None))
        assert _noted(folder) == whole and before < len(whole)


def test_the_seed_decides_what_is_drawn() -> None:
    first, again, other = (Augmented(_Noise(varies=True), seed).__getitems__([(1, 3)])[0][0] for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
