"""`--resume auto` of a run that has ended says so in one line, and how to train on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import train

_FLAGS = ["--model=mlp", "--dataset=synthetic", "--device=cpu", "--batch-size=500"]
_LAST_EPOCH = "step 20: the loaded checkpoint has already reached --epochs=1, so nothing is trained; "


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--epochs=1"], f"{_LAST_EPOCH}to train on, give a larger --epochs"),
        (["--max-steps=3"], "step 3: the loaded checkpoint has already reached --max-steps=3, so nothing is trained; "),
        (["--epochs=1", "--scheduler=cosine"], f"{_LAST_EPOCH}cosine cannot be prolonged: start a new run"),
    ],
)
def test_run_that_had_ended_says_so_when_it_is_resumed(flags: list[str], line: str, tmp_path: Path) -> None:
    flags = [*_FLAGS, *flags, f"--checkpoint-dir={tmp_path}", "--resume=auto"]
    assert "already reached" not in train(1, *flags).stdout
    assert f"\n{line}" in train(1, *flags).stdout


def test_run_that_trains_on_after_its_end_does_not_call_itself_ended(tmp_path: Path) -> None:
    for steps in (3, 5):
        ended = train(1, *_FLAGS, f"--max-steps={steps}", f"--checkpoint-dir={tmp_path}", "--resume=auto")
        assert ended.returncode == 0, ended.stderr
        assert "already reached" not in ended.stdout
