"""Every dataset in train/datasets/ keeps the promises of Samples; files that are absent or damaged are named."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.idx import idx_bytes, write_split
from train import datasets
from train.datasets import Samples, Split
from train.errors import UserError
from train.idx import load_idx_samples, read_idx

DATASETS = sorted(file.stem for file in Path(datasets.__file__).parent.glob("*.py") if file.stem != "__init__")
SPLITS: tuple[Split, ...] = ("train", "validation")
FOLDERS = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}
FILES = [f"{prefix}-{kind}-ubyte" for prefix in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]

Load = Callable[[str, Split], Samples]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """DATA_ROOT/MNIST/raw with five training and three validation images of 28×28."""
    folder = tmp_path / "MNIST" / "raw"
    generator = torch.Generator().manual_seed(0)
    for prefix, count in (("train", 5), ("t10k", 3)):
        images = torch.randint(0, 256, (count, 28, 28), generator=generator, dtype=torch.uint8)
        write_split(folder, images, torch.arange(count, dtype=torch.uint8), prefix)
    return folder


@pytest.fixture
def load(request: pytest.FixtureRequest) -> Load:
    """Loads a dataset: without files if it needs none, otherwise the real one."""

    def loader(name: str, split: Split) -> Samples:
        try:
            return datasets.load(name, "no folder", split, seed=0)
        except UserError:
            return datasets.load(name, str(request.getfixturevalue("data_root")), split, seed=0)

    return loader


@pytest.mark.parametrize("name", DATASETS)
def test_dataset_keeps_the_promises_of_samples(name: str, load: Load) -> None:
    sizes = {}
    for split in SPLITS:
        samples = load(name, split)
        images, labels = samples.tensors()
        sizes[split] = len(samples)
        assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
        assert images.shape == (len(samples), *samples.shape)
        assert labels.shape == (len(samples),)
        assert set(labels.tolist()) == set(range(samples.num_classes))
        for index in (0, 1, len(samples) // 2, len(samples) - 1):
            image, label = samples[index]
            assert torch.equal(image, images[index])
            assert (type(label), label) == (int, labels[index].item())
        assert len(samples.mean) == len(samples.std) == samples.shape[0]
    assert sizes["train"] > sizes["validation"] > 0


@pytest.mark.parametrize("name", DATASETS)
def test_mean_and_std_are_those_of_the_training_images(name: str, load: Load) -> None:
    samples = load(name, "train")
    pixels = samples.tensors()[0][:10_000].double().div(255).transpose(0, 1).flatten(1)
    assert samples.mean == pytest.approx(pixels.mean(dim=1).tolist(), abs=0.03)
    assert samples.std == pytest.approx(pixels.std(dim=1).tolist(), abs=0.03)


@pytest.mark.parametrize("name", DATASETS)
def test_splits_share_no_image(name: str, load: Load) -> None:
    train, validation = (
        {bytes(image.numpy().tobytes()) for image in load(name, split).tensors()[0]} for split in SPLITS
    )
    # Real data repeat a handful of images themselves.
    assert len(train & validation) <= len(validation) // 1000


@pytest.mark.parametrize("name", FOLDERS)
def test_real_sizes_are_the_published_ones(name: str, data_root: Path) -> None:
    assert [len(datasets.load(name, str(data_root), split, 0)) for split in SPLITS] == [60_000, 10_000]


def test_synthetic_sample_is_a_function_of_seed_split_and_index() -> None:
    def sample(seed: int, split: Split, index: int) -> bytes:
        image, label = datasets.load("synthetic", "", split, seed)[index]
        assert label == index % 10
        return bytes(image.numpy().tobytes())

    keys = [(seed, split, index) for seed in (0, 1, 2**32 - 1) for split in SPLITS for index in (0, 10, 1999)]
    images = {key: sample(*key) for key in keys}
    assert len(set(images.values())) == len(keys), "another seed, split or index is another image"
    assert all(sample(*key) == images[key] for key in reversed(keys)), "whatever was made before"


def test_synthetic_images_do_not_touch_torchs_generator() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    _ = datasets.load("synthetic", "", "train", 0)[5]
    assert torch.equal(torch.get_rng_state(), before)


def test_synthetic_images_are_the_same_tomorrow() -> None:
    # Written down once: numpy promises that PCG64 keeps its stream.
    image, _ = datasets.load("synthetic", "", "train", 0)[0]
    assert image.flatten()[:8].tolist() == [41, 118, 56, 59, 47, 122, 64, 108]


@pytest.mark.parametrize(("name", "folder"), FOLDERS.items())
def test_idx_files_are_found_where_torchvision_keeps_them(name: str, folder: str, raw: Path, tmp_path: Path) -> None:
    raw.parent.rename(tmp_path / folder)
    samples = datasets.load(name, str(tmp_path), "train", seed=0)
    assert (len(samples), samples.shape, samples.num_classes) == (5, (1, 28, 28), 10)
    assert len(datasets.load(name, str(tmp_path), "validation", seed=0)) == 3
    content = (tmp_path / folder / "raw" / FILES[0]).read_bytes()
    assert bytes(samples.tensors()[0].flatten().tolist()) == content[16:]


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 2), (2, 3, 4), (1, 2, 3, 4)], ids=str)
def test_an_array_written_as_idx_is_read_back(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = torch.randint(0, 256, shape, dtype=torch.uint8)
    (tmp_path / "file").write_bytes(idx_bytes(array))
    assert torch.equal(read_idx(tmp_path / "file"), array)


def test_gzipped_files_are_read_without_unpacking(raw: Path, tmp_path: Path) -> None:
    plain = datasets.load("mnist", str(tmp_path), "train", 0).tensors()
    for name in FILES:
        (raw / f"{name}.gz").write_bytes(gzip.compress((raw / name).read_bytes()))
        (raw / name).unlink()
    packed = datasets.load("mnist", str(tmp_path), "train", 0).tensors()
    assert all(torch.equal(one, other) for one, other in zip(plain, packed, strict=True))


@pytest.mark.parametrize("name", FOLDERS)
def test_missing_files_are_all_named_with_the_place_where_they_belong(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refusal:
        datasets.load(name, str(tmp_path), "train", 0)
    for line, file in zip(str(refusal.value).splitlines(), FILES[:2], strict=True):
        assert line.startswith(f"{tmp_path}/{FOLDERS[name]}/raw/{file} is missing: put it there (or {file}.gz)")
        assert f"--data-root the folder that holds {FOLDERS[name]}/raw/{file}" in line


def test_one_missing_file_alone_is_named(raw: Path, tmp_path: Path) -> None:
    (raw / FILES[1]).unlink()
    with pytest.raises(UserError) as refusal:
        datasets.load("mnist", str(tmp_path), "train", 0)
    assert str(refusal.value).count("is missing") == 1
    assert FILES[1] in str(refusal.value)
    datasets.load("mnist", str(tmp_path), "validation", 0)


@pytest.mark.parametrize("cut", [1, 784, 5 * 784])
def test_truncated_file_is_named_with_both_sizes_and_what_to_do(raw: Path, tmp_path: Path, cut: int) -> None:
    file = raw / FILES[0]
    file.write_bytes(file.read_bytes()[:-cut])
    with pytest.raises(UserError) as refusal:
        datasets.load("mnist", str(tmp_path), "train", 0)
    said = f"{file} is truncated: its header says 5×28×28, 3936 bytes in all, but it has {3936 - cut}."
    assert str(refusal.value).startswith(said)
    assert "Replace it" in str(refusal.value)


def test_file_that_is_too_long_is_named_with_what_to_do(raw: Path, tmp_path: Path) -> None:
    file = raw / FILES[1]
    file.write_bytes(file.read_bytes() + b"\0")
    with pytest.raises(UserError) as refusal:
        datasets.load("mnist", str(tmp_path), "train", 0)
    assert str(refusal.value).startswith(f"{file} is too long: its header says 5, 13 bytes in all, but it has 14.")
    assert "Replace it" in str(refusal.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0",
        b"\0\0\x08",
        b"\0\0\x08\x03\0\0",
        b"<!DOCTYPE html>",
        b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0",
        b"\0\0\x08\0",
    ],
    ids=["empty", "one byte", "no dimensions", "half a header", "a web page", "floats", "zero dimensions"],
)
def test_file_that_is_no_idx_file_of_bytes_is_named(raw: Path, tmp_path: Path, content: bytes) -> None:
    (raw / FILES[0]).write_bytes(content)
    with pytest.raises(UserError) as refusal:
        datasets.load("mnist", str(tmp_path), "train", 0)
    assert str(refusal.value).startswith(f"{raw / FILES[0]} is not an IDX file of bytes: ")


@pytest.mark.parametrize("damage", ["cut", "flipped", "not gzip", "empty"])
def test_damaged_gzip_file_is_named(raw: Path, tmp_path: Path, damage: str) -> None:
    packed = raw / f"{FILES[0]}.gz"
    content = gzip.compress((raw / FILES[0]).read_bytes())
    (raw / FILES[0]).unlink()
    flipped = bytearray(content)
    flipped[len(flipped) // 2] ^= 1
    packed.write_bytes({"cut": content[:-9], "flipped": bytes(flipped), "not gzip": b"hello", "empty": b""}[damage])
    with pytest.raises(UserError) as refusal:
        datasets.load("mnist", str(tmp_path), "train", 0)
    assert FILES[0] in str(refusal.value)


def test_both_damaged_files_are_told_at_once(raw: Path, tmp_path: Path) -> None:
    for name in FILES[:2]:
        (raw / name).write_bytes(b"?")
    with pytest.raises(UserError) as refusal:
        datasets.load("mnist", str(tmp_path), "train", 0)
    assert [str(raw / name) in str(refusal.value) for name in FILES[:2]] == [True, True]


@pytest.mark.parametrize(
    ("images", "labels"), [((5, 28, 28), (4,)), ((5, 784), (5,)), ((5, 28, 28), (5, 1))], ids=["count", "flat", "deep"]
)
def test_images_and_labels_that_do_not_fit_are_named_with_their_shapes(
    tmp_path: Path, images: tuple[int, ...], labels: tuple[int, ...]
) -> None:
    write_split(tmp_path, torch.zeros(images, dtype=torch.uint8), torch.zeros(labels, dtype=torch.uint8))
    with pytest.raises(UserError) as refusal:
        load_idx_samples(tmp_path, "train", 0.5, 0.5)
    message = str(refusal.value)
    assert str(tmp_path) in message
    assert f"images have shape {images} and the labels {labels}" in message
    assert "must be" in message
