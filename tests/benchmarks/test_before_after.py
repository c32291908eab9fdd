"""The comparison with an older commit trains both sides to the same losses.  Nothing here looks at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import before_after
from benchmarks.commits import GitError, describe_checkout


@pytest.fixture
def head() -> str:
    """The commit of this checkout."""
    try:
        return str(describe_checkout()["after"])
    except GitError as error:
        pytest.skip(f"there is no older commit to compare with: {error}")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("workload", ["small_layers", "mlp"])
def test_a_commit_trains_to_the_same_losses_as_its_own_checkout(workload: str, head: str, tmp_path: Path) -> None:
    arguments = ["HEAD", f"--workload={workload}", "--rounds=2", "--steps=2", f"--results={tmp_path}"]
    assert before_after.main(arguments) == 0

    result = json.loads((tmp_path / "before_after.json").read_text())
    assert result["commits"]["before"] == result["commits"]["after"] == head
    assert 0 <= result["loss_difference"][workload] <= result["loss_tolerance"]
    assert {side: len(seconds) for side, seconds in result["step_seconds"][workload].items()} == {
        "before": 2,
        "after": 2,
    }
    assert len(result["ratios"][workload]) == 2
    assert result["met"] == {workload: result["ratio"][workload] <= result["ratio_at_most"][workload]}
    assert str(tmp_path) not in json.dumps(result)


def test_unknown_commit_is_one_sentence(head: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        before_after.main(["no-such-commit"])
    assert end.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "python -m benchmarks.before_after: error: there is no commit 'no-such-commit' in this repository: "
        "give a hash, a tag or a branch that git log shows"
    )


def test_missing_git_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit) as end:
        before_after.main(["HEAD"])
    assert end.value.code == 2
    assert "git is not installed" in capsys.readouterr().err


@pytest.mark.parametrize("last", [1.000001, math.nan])
def test_losses_that_differ_are_refused(last: float) -> None:
    with pytest.raises(before_after.NotComparableError, match="the sides do different work"):
        before_after.loss_difference([2.0, 1.0], [2.0, last])


def test_sides_alternate_and_restart_after_three_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class FakeRanks(before_after.Ranks):
        def answer(self) -> list[float]:
            return [2.0, 1.0]

        def seconds_per_step(self, steps: int) -> float:
            events.append(self.side)
            return 1.0

    @contextmanager
    def start(side: str, root: Path, name: str, world_size: int) -> Iterator[before_after.Ranks]:
        events.append(f"start {side}")
        yield FakeRanks(side, [])

    monkeypatch.setattr(before_after, "start_ranks", start)
    seconds, difference = before_after.measure("mlp", {"before": Path(), "after": Path()}, 2, rounds=4, steps=1)

    assert seconds == {"before": [1.0] * 4, "after": [1.0] * 4}
    assert difference == 0
    starts = ["start before", "start after"]
    assert events == [
        *starts, "before", "after", "after", "before", "before", "after", *starts, "after", "before"
    ]  # fmt: skip


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_comparison(tmp_path: Path) -> None:
    # A rank refuses to measure another `train` than the one of its side, and this folder has none.
    with (
        before_after.start_ranks("before", tmp_path, "no_such_workload", 1) as ranks,
        pytest.raises(before_after.NotComparableError, match="a rank of the side 'before' failed"),
    ):
        ranks.answer()
