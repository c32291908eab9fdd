"""`--resume auto` of a run that has ended says so in one line, and how to train on."""

from pathlib import Path

import pytest

from tests.cli import records
from tests.ranks import make_trainer, run_ranks, train_on_ranks
from train.records.observer import Observer
from train.world.environment import World

_FLAGS = ["--model=mlp", "--dataset=synthetic", "--device=cpu", "--batch-size=500"]
_REACHED = "the loaded checkpoint has already reached"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--epochs=1"], f"{_REACHED} --epochs=1, so nothing is trained; to train on, give a larger --epochs"),
        (
            ["--max-steps=3", "--scheduler=cosine"],
            f"{_REACHED} --max-steps=3, so nothing is trained; "
            "cosine cannot be prolonged: start a new run in another --checkpoint-dir",
        ),
        (
            ["--epochs=1", "--max-steps=20"],
            f"{_REACHED} --epochs=1 and --max-steps=20, so nothing is trained; "
            "to train on, give a larger --epochs and a larger --max-steps",
        ),
    ],
)
def test_run_that_had_ended_says_so_when_it_is_resumed(flags: list[str], text: str, tmp_path: Path) -> None:
    for _ in range(2):
        train_on_ranks(1, *_FLAGS, *flags, f"--checkpoint-dir={tmp_path}", "--resume=auto", f"--run-dir={tmp_path}")
    assert [incident["text"] for incident in records(tmp_path, "incident")] == [text]


def test_run_that_trains_on_after_its_end_does_not_call_itself_ended(tmp_path: Path) -> None:
    for steps in (3, 5):
        kept = [f"--checkpoint-dir={tmp_path}", "--resume=auto", f"--run-dir={tmp_path}"]
        train_on_ranks(1, *_FLAGS, f"--max-steps={steps}", *kept)
    assert len(records(tmp_path, "step")) == 5 and records(tmp_path, "incident") == []


class _Incidents(Observer):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def incident(self, step: int, kind: str, text: str) -> None:
        self.texts.append(text)


def _resume_before_the_last_evaluation(world: World) -> tuple[int, list[str]]:
    """Return the evaluated step and the incidents of a run that is resumed after its last step."""
    stopped, resumed = (make_trainer(world, *_FLAGS, "--max-steps=3") for _ in range(2))
    stopped.run.records.begin_epoch()
    stopped.train_epoch()
    resumed.run.saving.load_state_dict(stopped.run.saving.state_dict())
    incidents = _Incidents()
    resumed.run.records.observers = [incidents]
    resumed.fit()
    return resumed.run.position.recorded_step, incidents.texts


def test_run_that_was_stopped_before_its_last_evaluation_had_not_ended() -> None:
    assert run_ranks(1, _resume_before_the_last_evaluation) == [(3, [])]
