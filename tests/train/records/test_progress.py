"""Where there is no terminal, a run says a line every --log-every steps, one an epoch, and how it ended."""

import time
from typing import Any

import pytest

from train.records.observer import EpochRecord, RunEnd, StepRecord
from train.records.progress import Progress

_START: dict[str, Any] = {
    "config": {"epochs": 3, "max_steps": None, "run_dir": "runs/a", "checkpoint_dir": None},
    "arithmetic": {
        "batch_size": 10,
        "world_size": 1,
        "readers": 1,
        "largest_share": 10,
        "smallest_share": 10,
        "accumulate": 1,
        "num_samples": 395,
        "steps_per_epoch": 40,
        "last_batch": 5,
    },
    "world": {"ranks": ["rank 0: here"]},
}


def _step(step: int, loss: float, samples: int = 10) -> StepRecord:
    return StepRecord((step - 1) // 40 + 1, step, loss, 0.1, samples, 0.0, 0.1, 100.0, None)


def _lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def _started(capsys: pytest.CaptureFixture[str]) -> Progress:
    progress = Progress()
    progress.run_started(_START)
    assert _lines(capsys) == [
        "rank 0: here",
        "global batch 10 = 1 process x 10 samples",
        "395 samples = 40 steps per epoch, the last with 5 samples",
    ]
    return progress


def test_each_time_losses_are_known_a_line_tells_their_mean_over_samples_the_rate_and_the_time_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = _started(capsys)
    for step in range(1, 81):
        progress.step_ended(step, [] if step % 2 else [_step(step - 1, 1.0), _step(step, 4.0, samples=5)])
    lines = _lines(capsys)
    assert [line.partition("  ")[2] for line in lines] == [
        f"epoch {epoch}/3  step {step}/40  loss 2.0000  lr 0.1  100 samples/s  "
        f"0:00:{round((160 - 40 * epoch - step) / 10):02} left"
        for epoch in (1, 2)
        for step in range(2, 41, 2)
    ]
    assert {line.partition("  ")[0] for line in lines} == {time.strftime("%H:%M:%S", time.localtime(0.0))}


def test_the_time_left_ends_at_max_steps(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    progress.run_started(_START | {"config": _START["config"] | {"max_steps": 50}})
    capsys.readouterr()
    progress.step_ended(1, [_step(1, 1.0)])
    (line,) = _lines(capsys)
    assert line.endswith("  0:00:05 left")  # 49 steps of 0.1 s


def test_a_run_that_continues_counts_from_where_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    progress = _started(capsys)
    progress.step_ended(76, [])
    progress.step_ended(77, [_step(76, 1.0), _step(77, 1.0)])
    progress.step_ended(79, [_step(78, 1.0), _step(79, 1.0)])
    assert [line.split("  ")[1:4] for line in _lines(capsys)] == [
        ["epoch 2/3", f"step {step}/40", "loss 1.0000"] for step in (37, 39)
    ]


def test_the_end_of_an_epoch_a_stop_and_the_end_of_the_run_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    progress = _started(capsys)
    values = {"val_loss": 0.25, "val_accuracy": 0.875}
    progress.epoch_ended(EpochRecord(1, 40, 0.5, values, 380, 395, 12.34, 10.0))
    progress.run_ended(RunEnd(2, 50, saved=True, weights_sha256=None))
    progress.run_ended(RunEnd(2, 50, saved=False, weights_sha256=None))
    progress.run_ended(RunEnd(3, 120, saved=True, weights_sha256="ab"))
    assert _lines(capsys) == [
        "epoch 1/3  train loss 0.5000 of 380/395 samples  validation loss 0.2500  accuracy 87.50%  12.3 s",
        'stopped by a signal at epoch 2, step 50; saved, resume="auto" continues there',
        "stopped by a signal at epoch 2, step 50; nothing is saved without checkpoint_dir",
        "done after 0:00:00; records in runs/a",
    ]
