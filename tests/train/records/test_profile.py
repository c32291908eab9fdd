"""--profile writes a trace of exactly the steps asked for on the ranks asked for, and a table of operators."""

import json
from pathlib import Path

import pytest
import torch

from tests.ranks import train_on_ranks
from train.errors import UserError
from train.flags import from_argv
from train.records.observer import RunEnd
from train.records.profile import Profile

_FLAGS = ["--model=mlp", "--dataset=synthetic", "--device=cpu", "--batch-size=1000", "--optimizer=adam"]


def test_rank_0_writes_a_trace_of_the_chosen_steps(tmp_path: Path) -> None:
    flags = ["--profile=3:5", f"--run-dir={tmp_path}", "--max-steps=8"]
    train_on_ranks(2, *_FLAGS, *flags, "--strategy=average_after_backward")
    folder = tmp_path / "profile"
    assert sorted(file.name for file in folder.iterdir()) == ["rank-0.pt.trace.json", "rank-0.txt"]
    trace = json.loads((folder / "rank-0.pt.trace.json").read_text())["traceEvents"]
    named = [event["name"] for event in trace if event.get("ph") == "X"]
    assert named.count("Optimizer.step#Adam.step") == 3
    assert named.count("wait for input") == 3
    assert [name for name in named if name.startswith("step ")] == ["step 3", "step 4", "step 5"]
    assert named.count("aten::addmm") >= 3 * 2
    table = (folder / "rank-0.txt").read_text()
    assert all(word in table for word in ("Self CPU", "aten::addmm", "wait for communication", "# of Calls"))


def test_a_table_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "profile" / "rank-0.txt").mkdir(parents=True)  # as on a full disk
    with pytest.raises(RuntimeError, match=r"UserError: --run-dir: cannot write .*profile: Is a directory"):
        train_on_ranks(1, *_FLAGS, "--profile=2:2", f"--run-dir={tmp_path}", "--max-steps=3")


def test_steps_that_a_start_does_not_make_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = Profile("3:4", str(tmp_path), torch.device("cpu"))
    profile.step_ended(3, [])  # a resumed run begins here
    profile.step_ended(4, [])
    profile.run_ended(RunEnd(1, 4, saved=False, weights_sha256=""))
    assert capsys.readouterr().out.startswith('profile="3:4" has profiled nothing: a start has to make the step before')


@pytest.mark.parametrize("steps", ["1:3", "5:4", "3", "a:b", "2:"])
def test_a_window_that_is_none_is_refused(steps: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'--profile: ".*" is not accepted; it must be steps FIRST:LAST'):
        from_argv([f"--profile={steps}", f"--run-dir={tmp_path}"])
