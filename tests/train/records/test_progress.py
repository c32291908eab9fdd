"""Where there is no terminal, a run says some lines of each epoch, one at its end, and where a signal stopped it."""

from __future__ import annotations

import pytest

from train.records.observer import EpochRecord, RunEnd, StepRecord
from train.records.progress import Progress

_START = {
    "config": {"epochs": 3},
    "arithmetic": {
        "batch_size": 10,
        "world_size": 1,
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
        "395 samples = 40 steps an epoch, the last of 5",
    ]
    return progress


def test_each_epoch_has_at_most_ten_lines_with_the_mean_loss_over_samples(capsys: pytest.CaptureFixture[str]) -> None:
    progress = _started(capsys)
    for step in range(1, 81):
        progress.step_ended(step, [] if step % 2 else [_step(step - 1, 1.0), _step(step, 4.0, samples=5)])
    lines = _lines(capsys)
    assert lines == [f"epoch {epoch}/3  step {step}/40  loss 2.0000" for epoch in (1, 2) for step in range(4, 41, 4)]


def test_a_run_that_continues_counts_from_where_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    progress = _started(capsys)
    progress.step_ended(76, [])
    progress.step_ended(77, [_step(76, 1.0), _step(77, 1.0)])
    progress.step_ended(79, [_step(78, 1.0), _step(79, 1.0)])
    assert _lines(capsys) == ["epoch 2/3  step 39/40  loss 1.0000"]


def test_the_end_of_an_epoch_and_a_stop_are_said_and_a_normal_end_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    progress = _started(capsys)
    progress.epoch_ended(EpochRecord(1, 40, 0.5, 0.25, 0.875, 395, 12.34, 10.0))
    progress.run_ended(RunEnd(2, 50, saved=True, weights_sha256=None))
    progress.run_ended(RunEnd(2, 50, saved=False, weights_sha256=None))
    progress.run_ended(RunEnd(3, 120, saved=True, weights_sha256="ab"))
    assert _lines(capsys) == [
        "epoch 1/3  train loss 0.5000  validation loss 0.2500  accuracy 87.50%  12.3 s",
        "stopped by a signal at epoch 2, step 50; saved, --resume=auto continues there",
        "stopped by a signal at epoch 2, step 50; nothing is saved without --checkpoint-dir",
    ]
