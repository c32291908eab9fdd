"""Every dataset in train/datasets/ keeps the promises of Samples; files that are absent or damaged are named."""

import hashlib
import re
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch

from tests.idx import write_split
from train import datasets
from train.config import available
from train.datasets import Samples, Split, _torchvision
from train.errors import UserError

# Of images that are always the same; the others have a file of their own.
DATASETS = [name for name in available("datasets") if name != "tokens"]
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
        if name == "digits":
            pytest.importorskip("sklearn")
        try:
            return datasets.load(name, "no folder", split, seed=0)
        except UserError:
            return datasets.load(name, str(request.getfixturevalue("data_root")), split, seed=0)

    return loader


@pytest.mark.parametrize("name", DATASETS)
def test_dataset_keeps_the_promises_of_samples_and_of_its_mean_and_std(name: str, load: Load) -> None:
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
        pixels = images[:10_000].double().div(255).transpose(0, 1).flatten(1)
        assert samples.mean == pytest.approx(pixels.mean(dim=1).tolist(), abs=0.03)
        assert samples.std == pytest.approx(pixels.std(dim=1).tolist(), abs=0.03)
    assert sizes["train"] > sizes["validation"] > 0


def test_digits_name_the_package_that_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(UserError, match="dataset digits needs the package scikit-learn: pip install scikit-learn"):
        datasets.load("digits", "", "train", 0)


def test_another_seed_split_or_index_is_another_synthetic_image_without_torchs_generator() -> None:
    images, before = set[bytes](), torch.get_rng_state()
    for seed, split in product((0, 1, 2**32 - 1), SPLITS):
        samples = datasets.load("synthetic", "", split, seed)
        images |= {samples[index][0].numpy().tobytes() for index in (0, 10, 1999)}
        assert [samples[index][1] for index in (0, 11, 1999)] == [0, 1, 9]
    assert len(images) == 3 * 2 * 3
    assert torch.equal(torch.get_rng_state(), before)


def test_synthetic_images_are_the_same_tomorrow() -> None:
    # Written down once: numpy promises that PCG64 keeps its stream.
    image, _ = datasets.load("synthetic", "", "train", 0)[0]
    assert image.flatten()[:8].tolist() == [41, 118, 56, 59, 47, 122, 64, 108]
    whole = hashlib.sha256(
        b"".join(part.numpy().tobytes() for part in datasets.load("synthetic", "", "validation", 0).tensors())
    )
    assert whole.hexdigest() == "33d8d3acd29e214360e8164d0079a4edc39026c8fbb4d1d531dd90be26f984cb"


@pytest.mark.parametrize(("name", "folder"), FOLDERS.items())
def test_idx_files_are_found_where_torchvision_keeps_them(name: str, folder: str, raw: Path, tmp_path: Path) -> None:
    raw.parent.rename(tmp_path / folder)
    samples = datasets.load(name, str(tmp_path), "train", seed=0)
    assert (len(samples), samples.shape, samples.num_classes) == (5, (1, 28, 28), 10)
    assert len(datasets.load(name, str(tmp_path), "validation", seed=0)) == 3
    content = (tmp_path / folder / "raw" / FILES[0]).read_bytes()
    assert bytes(samples.tensors()[0].flatten().tolist()) == content[16:]


def test_a_file_that_is_missing_is_named_with_the_folder_where_it_belongs(raw: Path, tmp_path: Path) -> None:
    (raw / FILES[0]).rename(raw / f"{FILES[0]}.gz")
    where = rf"{raw} must hold torchvision's four files, undamaged and unpacked; --data-root is .*MNIST/raw$"
    with pytest.raises(UserError, match=f"^cannot read MNIST: {FILES[0]} missing. {where}"):
        datasets.load("mnist", str(tmp_path), "train", 0)


def test_a_download_that_fails_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A file where the folder belongs: also root cannot write there.
    (tmp_path / "MNIST").write_text("")
    _torchvision.download("MNIST", tmp_path)
    assert re.search(r"note: could not download MNIST to .*MNIST/raw: .*(exists|directory)", capsys.readouterr().err)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a byte is missing": lambda content: content[:-1],
    "nothing after the first size": lambda content: content[:8],
    "half a header": lambda content: content[:5],
    "a byte too many": lambda content: content + b"\0",
    "empty": lambda content: b"",
    "a web page": lambda content: b"<!DOCTYPE html>",
    "floats": lambda content: b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0",
    "no dimensions": lambda content: b"\0\0\x08\0",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("file", FILES[:2])
def test_a_damaged_file_is_named_with_its_folder_and_what_is_wrong(
    raw: Path, tmp_path: Path, file: str, damage: Callable[[bytes], bytes]
) -> None:
    (raw / file).write_bytes(damage((raw / file).read_bytes()))
    with pytest.raises(UserError, match=rf"^cannot read MNIST: \S.* {raw} must hold .*undamaged"):
        datasets.load("mnist", str(tmp_path), "train", 0)


@pytest.mark.parametrize(
    ("num_images", "labels", "says"),
    [
        (5, [0] * 4, "the train files hold 5 images, 4 labels"),
        (4, [0] * 5, "the train files hold 4 images, 5 labels"),
        (1, [10], "classes up to 10, not one label from 0 to 9 an image"),
    ],
)
def test_images_and_labels_that_do_not_fit_are_named_with_their_numbers(
    raw: Path, tmp_path: Path, num_images: int, labels: list[int], says: str
) -> None:
    images = torch.zeros((num_images, 28, 28), dtype=torch.uint8)
    write_split(raw, images, torch.tensor(labels).byte())
    with pytest.raises(UserError, match=says):
        datasets.load("mnist", str(tmp_path), "train", 0)
