"""--tensorboard writes each step and each epoch where TensorBoard's own reader finds them."""

import importlib.util
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.cli import records
from tests.ranks import train_on_ranks
from train.errors import UserError

_FLAGS = ["--model=mlp", "--dataset=synthetic", "--device=cpu", "--batch-size=1000", "--log-every=4", "--clip-norm=1"]


def _scalars(run_dir: Path) -> dict[str, dict[int, float]]:
    """Each tag's values by step."""
    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    return {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


@pytest.mark.parametrize("world_size", [1, 2])
def test_tensorboard_has_the_values_of_metrics_jsonl_and_the_shares_of_time(world_size: int, tmp_path: Path) -> None:
    train_on_ranks(world_size, *_FLAGS, "--epochs=2", "--max-steps=13", "--tensorboard", f"--run-dir={tmp_path}")
    scalars, steps = _scalars(tmp_path), records(tmp_path, "step")
    assert len(steps) == 13
    names = {"loss": "train/loss", "lr": "train/lr", "grad_norm": "train/grad_norm"}
    names |= {"samples_per_second": "speed/samples_per_second", "input_share": "share_of_time/data"}
    names |= {"communication_share": "share_of_time/communication"}
    for key, tag in names.items():
        assert scalars[tag] == {record["step"]: pytest.approx(record[key], rel=1e-6) for record in steps}, key
    assert (max(scalars["share_of_time/communication"].values()) > 0) == (world_size > 1)
    epochs = records(tmp_path, "epoch")
    assert scalars["epoch/val_accuracy"] == {record["step"]: pytest.approx(record["val_accuracy"]) for record in epochs}
    assert all(10 < mib < 100_000 for mib in scalars["memory/peak_mib"].values())


def test_a_run_that_continues_replaces_the_steps_that_it_repeats(tmp_path: Path) -> None:
    kept = [f"--checkpoint-dir={tmp_path / 'c'}", f"--run-dir={tmp_path}", "--tensorboard", "--resume=auto"]
    train_on_ranks(1, *_FLAGS, *kept, "--max-steps=4", "--seed=1")
    train_on_ranks(1, *_FLAGS, *kept, "--max-steps=10", "--seed=1")
    losses = _scalars(tmp_path)["train/loss"]
    assert list(losses) == list(range(1, 11))


def test_without_tensorboard_installed_the_flag_is_refused_with_the_command_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from train.records.tensorboard import TensorBoard

    monkeypatch.setattr("train.errors.find_spec", lambda name: importlib.util.find_spec("no_such_module"))
    with pytest.raises(UserError, match=r"^tensorboard needs the package tensorboard.*: pip install "):
        TensorBoard(str(tmp_path), torch.device("cpu"))
