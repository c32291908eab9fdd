"""The GPU checks that train in published settings and time precisions, on the CPU for a few steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.gpu import precisions, published
from benchmarks.gpu.checks import CHECKS
from benchmarks.gpu.outcome import Failed, OutOfTime, Skipped, recorded
from benchmarks.ranks import ROOT
from train.config import TrainConfig
from train.flags import from_argv

pytestmark = pytest.mark.timeout(580)


def _figures(monkeypatch: pytest.MonkeyPatch, **figures: list[float]) -> None:
    monkeypatch.setattr(published, "trained", lambda *_: {"command_seconds": 40.0, **figures})


def test_both_settings_are_the_published_ones() -> None:
    for file, flags, epochs in (("mnist", published.MNIST, 14), ("fashion-mnist", published.FASHION_MNIST, 10)):
        job = yaml.safe_load((ROOT / "jobs" / f"{file}.yaml").read_text())["train"]
        expected = TrainConfig(**{**job, "epochs": epochs, "data_root": "data"})
        assert from_argv(list(flags)) == expected


def test_each_trainings_limit_leaves_its_check_time_to_record() -> None:
    limits = {"l": published.MNIST_LIMIT_S, "m": published.FASHION_MNIST_LIMIT_S, "n": precisions.LIMIT_S}
    for name, limit_s in limits.items():
        assert limit_s + 20 < CHECKS[name].limit_s < 600


def test_accuracy_on_mnist_must_be_the_published_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _figures(monkeypatch, val_accuracy=[0.98, 0.9921])
    record = published.mnist("cuda")
    assert (record["command_seconds"], record["published"]["seconds"]) == (40.0, 143.0)
    _figures(monkeypatch, val_accuracy=[0.993, 0.9914])
    with pytest.raises(Failed, match=r"^the accuracy at the end is 99.14%, below 99.2%$") as failed:
        published.mnist("cuda")
    assert failed.value.record["val_accuracy"] == [0.993, 0.9914]


def test_train_loss_on_fashion_mnist_must_be_near_the_published_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _figures(monkeypatch, train_loss=[0.6, 0.19])
    assert published.fashion_mnist("cuda")["difference"] == pytest.approx(0.0106, abs=1e-4)
    _figures(monkeypatch, train_loss=[0.6, 0.17])
    with pytest.raises(Failed, match=r"differs from 0.188 by -9.6%"):
        published.fashion_mnist("cuda")


def test_without_data_the_check_is_skipped_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATA_ROOT", raising=False)
    with pytest.raises(Skipped, match="DATA_ROOT is not set: set it to the folder that holds MNIST/raw"):
        published.mnist("cuda")
    monkeypatch.setenv("DATA_ROOT", str(tmp_path))
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for name in published._FILES[1:]:
        (raw / name).touch()
    with pytest.raises(Skipped, match="DATA_ROOT lacks train-images-idx3-ubyte in FashionMNIST/raw"):
        published.fashion_mnist("cuda")


@pytest.mark.slow
def test_a_training_is_run_as_users_run_it(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_ROOT", str(data_root))
    record = recorded(lambda: published.mnist("cpu", "--max-steps=5"))
    assert record["outcome"] == "failed" and "accuracy" in record["why"]
    assert [len(record[name]) for name in ("train_loss", "val_loss", "val_accuracy", "train_seconds")] == [1] * 4
    assert record["command_seconds"] > sum(record["train_seconds"])
    monkeypatch.setattr(published, "MNIST_LIMIT_S", 3.0)
    with pytest.raises(OutOfTime, match="the training had not ended after 3 s"):
        published.mnist("cpu")


def _times(values: dict[str, Iterator[float]], monkeypatch: pytest.MonkeyPatch, refusal: str = "") -> None:
    def seconds_per_step(device: str, flags: list[str], steps: int, limit_s: float) -> float:
        precision = next(flag.partition("=")[2] for flag in flags if flag.startswith("--precision="))
        if "--compile" in flags and refusal:
            raise Failed(refusal)
        return next(values[precision + ", compiled" * ("--compile" in flags)])

    monkeypatch.setattr(precisions, "seconds_per_step", seconds_per_step)


def test_step_times_are_compared_with_fp32_of_the_same_round(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"fp32": [1.0, 2.0], "tf32": [0.5, 1.0], "bf16": [0.4, 0.6]}
    values |= {f"{name}, compiled": [0.8 * value for value in of_name] for name, of_name in values.items()}
    _times({name: iter(of_name) for name, of_name in values.items()}, monkeypatch)
    record: dict[str, Any] = precisions.run("cuda")
    assert record["seconds_per_step"] == values
    assert record["ratio_to_fp32"]["tf32"] == 0.5
    assert record["ratio_to_fp32"]["bf16, compiled"] == pytest.approx(0.8 * 0.35)


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
        "/tmp/main.c:3:10: fatal error: Python.h: No such file or directory",
    ],
)
def test_step_times_are_kept_where_nothing_can_be_compiled(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {name: iter([1.0, 2.0]) for name in precisions.PRECISIONS}
    _times(values, monkeypatch, f"rank 0 ended with 1: Traceback\n{message}\nmore")
    with pytest.raises(Skipped) as skipped:
        precisions.run("cuda")
    assert str(skipped.value) == f"compiled: {message}"
    assert skipped.value.record["ratio_to_fp32"] == {name: 1.0 for name in precisions.PRECISIONS}
    # Any other error is one.
    _times({name: iter([1.0, 2.0]) for name in precisions.PRECISIONS}, monkeypatch, "rank 0 ended with 1: wrong")
    with pytest.raises(Failed, match="wrong") as failed:
        precisions.run("cuda")
    assert failed.value.record["seconds_per_step"] == {name: [1.0] for name in precisions.PRECISIONS}


@pytest.mark.slow
def test_steps_are_timed_and_a_refused_compilation_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Skipped, match=r"compiled: .*--compile needs a C\+\+ compiler") as skipped:
        precisions.run("cpu", ("fp32", "bf16"), model="mlp", batch_size=500, steps=20, rounds=1)
    assert set(skipped.value.record["ratio_to_fp32"]) == {"fp32", "bf16"}
