"""--profile writes a trace of exactly the steps asked for on the ranks asked for, and a summary that adds up."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import profile

from tests.cli import records
from tests.ranks import train_on_ranks
from train.errors import UserError
from train.flags import from_argv
from train.records.profile import Summary, in_words, summarize

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
    summary = (folder / "rank-0.txt").read_text()
    assert summary.startswith("profile of 3 steps: ") and " step 3" not in summary
    exposed = re.search(r"communication not hidden behind computing: ([\d.]+) ms a step", summary)
    # This strategy computes nothing while it communicates.
    assert exposed is not None and float(exposed[1]) > 0
    assert "communication hidden behind computing: 0.00 ms" in summary


def test_a_summary_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "profile" / "rank-0.txt").mkdir(parents=True)  # as on a full disk
    with pytest.raises(RuntimeError, match=r"UserError: --run-dir: cannot write .*profile: Is a directory"):
        train_on_ranks(1, *_FLAGS, "--profile=2:2", f"--run-dir={tmp_path}", "--max-steps=3")


def test_steps_that_a_start_does_not_make_are_reported(tmp_path: Path) -> None:
    kept = [*_FLAGS, f"--run-dir={tmp_path}", f"--checkpoint-dir={tmp_path}", "--resume=auto"]
    for until, steps in [(3, "3:4"), (5, "2:5"), (9, "9:9"), (9, "9:9")]:
        train_on_ranks(1, *kept, f"--max-steps={until}", f"--profile={steps}")
    texts = [record["text"] for record in records(tmp_path, "incident") if record["kind"] == "not_profiled"]
    assert [text.split("=")[1][:3] for text in texts] == ["3:4", "2:5"]
    assert texts[1].endswith(" profiles nothing: this start can profile steps 5 to 5")


def test_the_summary_has_milliseconds_a_step_and_shares() -> None:
    summary = Summary(total=0.4, input_wait=0.02, hidden=0.1, exposed=0.04, top=[("aten::mm", 0.2)])
    assert in_words(summary, num_steps=4).splitlines() == [
        "profile of 4 steps: 100.00 ms a step, with the profiler's own time",
        "  waiting for input: 5.00 ms a step, 5.0%",
        "  communication not hidden behind computing: 10.00 ms a step, 10.0%",
        "  communication hidden behind computing: 25.00 ms a step, 25.0%",
        "  operators with the most self time:",
        "    aten::mm: 50.00 ms a step, 50.0%",
    ]


def _event(name: str, start_us: int, end_us: int, **kind: Any) -> FunctionEvent:
    return FunctionEvent(id=0, name=name, thread=0, start_us=start_us, end_us=end_us, **kind)


def test_the_range_in_which_a_host_waits_for_nccl_is_no_computing_of_the_gpu() -> None:
    """The profiler repeats each record_function of the host among the kernels."""
    gpu: dict[str, Any] = {"device_type": DeviceType.CUDA}
    events = [
        _event("wait for communication", 0, 10, device_type=DeviceType.CPU),
        _event("wait for communication", 0, 10, is_user_annotation=True, **gpu),
        _event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 2, 8, **gpu),
    ]
    summary = summarize(cast(profile, SimpleNamespace(events=lambda: events, key_averages=list)))
    assert summary.exposed == pytest.approx(6e-6) and summary.hidden == 0


def test_times_that_overlap_count_once_and_computing_in_a_wait_hides_nothing() -> None:
    times = {
        "gloo:all_reduce": [(5, 7), (0, 2), (1, 3), (3, 4), (20, 21)],
        "wait for communication": [(6, 8)],
        "aten::mm": [(2, 3), (2, 5), (7, 10)],
        "wait for input": [(30, 32), (31, 33)],
    }
    events = [_event(name, *time, device_type=DeviceType.CPU) for name, found in times.items() for time in found]
    summary = summarize(cast(profile, SimpleNamespace(events=lambda: events, key_averages=list)))
    # Messages from 0 to 4, 5 to 8 and 20 to 21; of these the host computes from 2 to 4, and from 7 to 8 it waits.
    assert [summary.hidden, summary.exposed] == pytest.approx([2e-6, 6e-6])
    assert [summary.input_wait, summary.total] == pytest.approx([3e-6, 33e-6])


@pytest.mark.parametrize("steps", ["1:3", "5:4", "3", "a:b", "2:"])
def test_a_window_that_is_none_is_refused(steps: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'--profile: ".*" is not accepted; it must be steps FIRST:LAST'):
        from_argv([f"--profile={steps}", f"--run-dir={tmp_path}"])
