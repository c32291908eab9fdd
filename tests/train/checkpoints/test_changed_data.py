"""A run that is resumed after its training data have changed says so, once; nothing else is said to have changed."""

from pathlib import Path

import pytest
from PIL import Image

from tests.cli import records
from tests.ranks import make_trainer, run_ranks, train_on_ranks
from tests.train.devices import needs_fsdp_on_cpus
from train import datasets
from train.datasets import tokens
from train.world.environment import World


def _write_tokens(root: Path, text: bytes) -> None:
    (root / "text").write_bytes(text)
    tokens.write([root / "text"], root, context=8)


def _draw(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(root / name)


def _flags(root: Path, dataset: str, steps: int, *more: str) -> list[str]:
    model = {"tokens": "gpt", "image_folder": "mlp"}[dataset]
    kept = [f"--run-dir={root / 'run'}", f"--checkpoint-dir={root / 'checkpoints'}", "--resume=auto"]
    run = [f"--dataset={dataset}", f"--data-root={root}", f"--model={model}", "--batch-size=2", "--workers=0"]
    return [*run, *kept, f"--max-steps={steps}", "--epochs=9", *more]


def _changes_said(root: Path) -> list[str]:
    return [record["text"] for record in records(root / "run", "incident") if record["kind"] == "other_data"]


def _trains_without_hash(world: World, *flags: str) -> None:
    """As the release did that had no hashes."""
    trainer = make_trainer(world, *flags)
    trainer.run.saving._data_sha256 = None
    trainer.fit()


@pytest.mark.parametrize(
    ("dataset", "world_size", "more"),
    [
        pytest.param("tokens", 1, (), marks=pytest.mark.slow),
        ("image_folder", 1, ()),
        pytest.param("tokens", 2, ("--strategy=fsdp",), marks=[needs_fsdp_on_cpus, pytest.mark.slow]),
    ],
)
def test_a_resumed_run_says_once_that_its_data_have_changed(
    dataset: str, world_size: int, more: tuple[str, ...], tmp_path: Path
) -> None:
    _write_tokens(tmp_path, bytes(400))
    _draw(tmp_path, "train/cat/a.png", "train/cat/b.png", "train/dog/a.png", "train/dog/b.png")
    _draw(tmp_path, "val/cat/a.png", "val/dog/a.png")
    train_on_ranks(world_size, *_flags(tmp_path, dataset, 1, *more))
    _write_tokens(tmp_path, bytes(399) + b"x")  # the validation
    train_on_ranks(world_size, *_flags(tmp_path, dataset, 2, *more))
    assert _changes_said(tmp_path) == []

    _write_tokens(tmp_path, b"x" + bytes(399))
    (tmp_path / "train/dog/b.png").rename(tmp_path / "train/dog/c.png")
    train_on_ranks(world_size, *_flags(tmp_path, dataset, 2, "--evaluate-only", *more))
    assert _changes_said(tmp_path) == []
    for steps in (3, 4):
        train_on_ranks(world_size, *_flags(tmp_path, dataset, steps, *more))
    [said] = _changes_said(tmp_path)
    assert f"({dataset} in {tmp_path}) have changed since the checkpoint of step 2: the run continues" in said

    tokens.write([tmp_path / "text"], tmp_path, context=4)
    _draw(tmp_path, "train/owl/a.png", "val/owl/a.png")
    fault = r"SharedError: .*does not fit (the )?model: .* is \(.*\) in the checkpoint and \(.*\) now.*\. Give the old"
    with pytest.raises(RuntimeError, match=fault):
        train_on_ranks(world_size, *_flags(tmp_path, dataset, 5, *more))


def test_nothing_is_said_of_a_checkpoint_that_does_not_know_its_data(tmp_path: Path) -> None:
    _write_tokens(tmp_path, bytes(400))
    run_ranks(1, _trains_without_hash, *_flags(tmp_path, "tokens", 1))
    _write_tokens(tmp_path, b"x" + bytes(399))
    train_on_ranks(1, *_flags(tmp_path, "tokens", 2))
    assert _changes_said(tmp_path) == []


def test_the_hash_of_pictures_is_of_their_names_wherever_the_folder_lies(tmp_path: Path) -> None:
    for root in (tmp_path / "here", tmp_path / "there"):
        _draw(root, "train/cat/a.png", "train/dog/a.png", "val/cat/a.png", "val/dog/a.png")
    here, there = (datasets.load("image_folder", str(tmp_path / name), "train", 0) for name in ("here", "there"))
    assert here.sha256() == there.sha256()
    (tmp_path / "there/train/dog/a.png").rename(tmp_path / "there/train/cat/b.png")
    _draw(tmp_path, "there/train/dog/b.png")
    assert datasets.load("image_folder", str(tmp_path / "there"), "train", 0).sha256() != here.sha256()
