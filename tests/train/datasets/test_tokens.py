"""The token file: rows and their targets, what is read of it, and what is said if it is missing or damaged."""

import json
import resource
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from train import datasets
from train.data.batches import Batches
from train.datasets import tokens
from train.errors import UserError

Array = npt.NDArray[np.generic]
CPU = torch.device("cpu")


def write(folder: Path, train: Array, vocabulary: int, context: int) -> None:
    """A token file as another tokenizer would write it; the validation is the same."""
    (folder / "tokens").mkdir()
    for split in ("train", "validation"):
        np.save(folder / "tokens" / f"{split}.npy", train)
    (folder / "tokens" / "tokens.json").write_text(json.dumps({"vocabulary": vocabulary, "context": context}))


def test_the_bytes_of_the_texts_are_the_tokens_and_each_has_the_next_as_its_target(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_bytes(bytes(range(200)))
    assert tokens.main(["--data-root", str(tmp_path), "--context", "9", str(text), str(text)]) == 0
    content = bytes(range(200)) + b"\n" + bytes(range(200))
    samples = datasets.load("tokens", str(tmp_path), "train", 0)
    rows, targets = samples.tensors()
    assert (len(samples), samples.shape, samples.num_classes) == (40, (9,), 256)
    assert bytes(rows.flatten().tolist()) == content[: 40 * 9]
    assert bytes(targets.flatten().tolist()) == content[1 : 40 * 9 + 1]
    row, target = samples[39]
    assert isinstance(target, torch.Tensor)
    assert torch.equal(row, rows[39]) and torch.equal(target, targets[39])
    validation = datasets.load("tokens", str(tmp_path), "validation", 0)
    assert bytes(validation.tensors()[0].flatten().tolist()) == content[361:][:36]


@pytest.mark.parametrize(("folder", "written"), [("~/t", "home/t"), ("~nobodyx/t", "~nobodyx/t")])
def test_a_leading_tilde_is_the_home_folder_of_a_known_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, written: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "text").write_bytes(bytes(200))
    assert tokens.main([f"--data-root={folder}", "--context=9", "text"]) == 0
    assert (tmp_path / written / "tokens" / "train.npy").is_file()


def test_a_file_that_cannot_be_written_whole_is_named_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_bytes(bytes(50_000))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))  # as on a full disk
    try:
        assert tokens.main([f"--data-root={tmp_path}", str(tmp_path / "text")]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "tokens: 45000 requested and" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
@pytest.mark.parametrize("path", ["memory", "loader"])
def test_batches_of_tokens_are_the_same_on_every_path(tmp_path: Path, dtype: type, path: str) -> None:
    write(tmp_path, np.arange(100, dtype=dtype), 300, 8)
    samples = datasets.load("tokens", str(tmp_path), "train", 0)
    steps = [[3, 0], [], [11]]
    batches = list(Batches(samples, steps, CPU, path, workers=0))
    for (rows, targets), indices in zip(batches, steps, strict=True):
        assert (rows.dtype, targets.dtype) == (torch.int64, torch.int64)
        wanted = torch.tensor([[8 * index + place for place in range(8)] for index in indices or [0, 0]])
        assert torch.equal(rows, wanted)
        assert torch.equal(targets, wanted + 1)


def test_only_the_pages_that_are_read_come_into_memory(tmp_path: Path) -> None:
    write(tmp_path, np.zeros(64 * 2**20, dtype=np.uint8), 256, 64)

    def resident_kib() -> int:
        maps = Path("/proc/self/smaps").read_text().split("train.npy", 1)[1]
        return int(maps.split("Rss:", 1)[1].split()[0])

    samples = tokens.TokenSamples(tmp_path / "tokens" / "train.npy", 256, 64)
    list(Batches(samples, [[5, 6], [900_000]], CPU))
    assert 0 < resident_kib() < 4096


def test_a_loader_s_processes_map_the_file_and_copy_none_of_it_into_shared_memory(tmp_path: Path) -> None:
    write(tmp_path, np.arange(2**24, dtype=np.int32) % 100, 100, 64)
    samples = datasets.load("tokens", str(tmp_path), "train", 0)
    batches = Batches(samples, [[5, 6], [7]], CPU, "loader", workers=1)
    loader = iter(batches._raw_batches)
    raw = next(loader)
    rows, targets = batches._prepare(raw)
    for first, read in enumerate((rows, targets), start=5 * 64):
        assert torch.equal(read.flatten(), torch.arange(first, first + 2 * 64) % 100) and read.dtype == torch.int64
    mapped = [
        line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if "/torch_" in line
    ]
    assert mapped, "batches travel through shared memory"
    assert sum(int(end, 16) - int(start, 16) for start, end in mapped) < 2**20, "but not the 64 MiB of the file"


def test_missing_files_are_named_with_the_command_that_makes_them(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*tokens\.json.*`python -m train\.datasets\.tokens"):
        datasets.load("tokens", str(tmp_path), "train", 0)
    write(tmp_path, np.zeros(100, dtype=np.uint8), 256, 8)
    (tmp_path / "tokens" / "train.npy").unlink()
    with pytest.raises(UserError, match=r"cannot read .*train\.npy.*`python -m train\.datasets\.tokens"):
        datasets.load("tokens", str(tmp_path), "train", 0)


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.zeros(100), "holds float64 of shape"),
        (np.zeros((10, 10), np.uint8), r"shape \(10, 10\); expected one dimension"),
        (np.zeros(8, np.uint8), "more than 8 tokens"),
        (np.full(100, 200, np.uint8), "tokens from 200 to 200, but tokens.json says vocabulary 100"),
        (np.full(100, -1, np.int32), "tokens from -1 to -1"),
    ],
)
def test_a_file_that_does_not_fit_is_named(tmp_path: Path, array: Array, says: str) -> None:
    write(tmp_path, array, 100, 8)
    with pytest.raises(UserError, match=says):
        datasets.load("tokens", str(tmp_path), "train", 0)


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY", b"<!DOCTYPE html>"])
@pytest.mark.parametrize(
    ("file", "says"), [("train.npy", ".*makes it"), ("tokens.json", r', which must be like \{"vocabulary"')]
)
def test_a_damaged_file_is_named(tmp_path: Path, file: str, says: str, damage: bytes) -> None:
    write(tmp_path, np.zeros(100, dtype=np.uint8), 256, 8)
    (tmp_path / "tokens" / file).write_bytes(damage)
    with pytest.raises(UserError, match=rf"cannot read .*{file}{says}"):
        datasets.load("tokens", str(tmp_path), "train", 0)


def test_texts_that_are_missing_or_too_short_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tokens.main(["--data-root", str(tmp_path), str(tmp_path / "none.txt")]) == 1
    assert "none.txt: No such file" in capsys.readouterr().err
    (tmp_path / "short.txt").write_text("short")
    assert tokens.main(["--data-root", str(tmp_path), str(tmp_path / "short.txt")]) == 1
    assert "the texts have 5 bytes" in capsys.readouterr().err
