"""image_folder reads and trains on a small folder of real digits; what is wrong with a folder is named."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from train import datasets
from train.data.batches import Batches
from train.data.sampler import ShardSampler
from train.errors import UserError

_TRAIN, _VALIDATION = 200, 100


@pytest.fixture(scope="module")
def folder(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first digits of MNIST as PNG files, a folder a class."""
    root = tmp_path_factory.mktemp("digits")
    for split, name, count in (("train", "train", _TRAIN), ("validation", "val", _VALIDATION)):
        digits = datasets.load("mnist", str(data_root), split, 0)  # type: ignore[arg-type]
        for index in range(count):
            image, label = digits[index]
            file = root / name / str(label) / f"{index:04}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0].numpy()).save(file)
    return root


def test_validation_pictures_are_the_files_in_rgb_and_always_the_same(folder: Path, data_root: Path) -> None:
    samples = datasets.load("image_folder", str(folder), "validation", 0)
    assert (len(samples), samples.shape, samples.num_classes) == (_VALIDATION, (3, 28, 28), 10)
    assert not samples.varies
    images, labels = samples.tensors()
    digits, classes = datasets.load("mnist", str(data_root), "validation", 0).tensors()
    # ImageFolder lists class by class, and within a class in the order of the names.
    order = sorted(range(_VALIDATION), key=lambda index: (int(classes[index]), index))
    assert torch.equal(labels, classes[order])
    assert torch.equal(images, digits[order].expand(-1, 3, -1, -1))


def test_the_loader_is_taken_so_that_each_epoch_reads_other_pictures(folder: Path) -> None:
    samples = datasets.load("image_folder", str(folder), "train", 0)
    sampler = ShardSampler(len(samples), _TRAIN // 2 + 1, 0, 1, 0)
    batches = Batches(samples, sampler, torch.device("cpu"), "auto", workers=1)
    first = [images for images, _ in batches]
    sampler.set_epoch(2)
    second = [images for images, _ in batches]
    assert [len(images) for images in first] == [101, 99]
    assert not torch.equal(first[0], second[0])
    with pytest.raises(UserError, match="--input=memory would read each picture once"):
        Batches(samples, [[0, 1]], torch.device("cpu"), "memory")


def test_a_folder_without_pictures_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train holds no pictures: .*--data-root must hold train/CLASS"):
        datasets.load("image_folder", str(tmp_path), "train", 0)


def _draw(root: Path, *folders: str) -> None:
    for folder in folders:
        (root / folder).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(root / folder / "a.png")


def test_classes_of_only_one_split_are_named(tmp_path: Path) -> None:
    _draw(tmp_path, "train/cat", "train/dog", "val/cat")
    with pytest.raises(UserError, match="but only one of them has dog"):
        datasets.load("image_folder", str(tmp_path), "train", 0)


def test_a_damaged_picture_is_named(tmp_path: Path) -> None:
    _draw(tmp_path, "train/cat", "val/cat")
    (tmp_path / "val" / "cat" / "b.png").write_bytes(b"no picture")
    samples = datasets.load("image_folder", str(tmp_path), "validation", 0)
    with pytest.raises(UserError, match=r"cannot read the picture .*/b\.png: "):
        samples.tensors()
