"""The GPU checks with two ranks: what counts as naming a dead rank, as a refusal of NCCL, and as compression."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import deaths, jobs, two_ranks
from benchmarks.gpu.outcome import Failed, Skipped
from benchmarks.ranks import HERE, run_ranks

_START = "rank 0: node 0 (host), local rank 0, cuda:0\nrank 1: node 1 (host), local rank 0, cuda:0\n"
_STEPS = "07:52:06  epoch 1/1  step 1/157  loss 2.3181\n07:52:06  epoch 1/1  step 2/157  loss 2.3009\n"
_NAMES = "no report within 5 s from rank 1 (ended or still waiting): see its log\n"


def _job(folder: Path, text: str, seconds: float = 0.0, code: int = 1) -> jobs.Job:
    """Return a job whose rank 0 has written `text` and ends by and by."""
    (folder / "log").write_text(text)
    program = f"import sys, time; time.sleep({seconds}); sys.exit({code})"
    return jobs.Job([subprocess.Popen([sys.executable, "-c", program])], [folder / "log"], folder)


def test_only_what_is_said_after_the_last_step_names_the_dead_rank(tmp_path: Path) -> None:
    warning = "host-0:1:1 [0] proxy.cc:1 NCCL WARN Socket recv failed, peer rank 1\n"
    assert deaths.named(_START + _STEPS + _NAMES) == [_NAMES.strip()]
    assert deaths.named(_START + _STEPS + "error: from rank 10\n" + warning) == []
    with pytest.raises(Failed, match=r"^rank 0 does not name rank 1$") as failed:
        deaths._survivor(_job(tmp_path, _START + _STEPS), time.monotonic(), 30)
    assert failed.value.record["exit_code"] == 1


def test_message_and_seconds_are_recorded_even_if_the_survivor_hangs_or_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deaths, "_PATIENCE_S", 0.5)
    job = _job(tmp_path, _STEPS + _NAMES, seconds=100)
    with pytest.raises(Failed, match=r"^rank 0 had not ended after \d") as failed:
        deaths._survivor(job, time.monotonic(), 1)
    job.processes[0].kill()
    assert failed.value.record["message"] == _NAMES.strip()
    assert failed.value.record["seconds_to_name"] < 1 < failed.value.record["seconds"]
    monkeypatch.setattr(deaths, "_PATIENCE_S", 20)
    with pytest.raises(Failed, match=r"^rank 0 needed .* s to end, more than 1$"):
        deaths._survivor(_job(tmp_path, _STEPS + _NAMES, seconds=2), time.monotonic(), 1)


def _failing(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
    raise RuntimeError("no")


def test_what_ranks_print_can_be_kept(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="failed with exit code 1"):
        run_ranks(_failing, [HERE], 60, output=tmp_path / "output", words="Duplicate GPU detected")
    assert "Duplicate GPU detected" in (tmp_path / "output").read_text()


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000", Skipped),
        ("torch.distributed.DistBackendError: NCCL error … ncclInvalidUsage: This usually reflects", Skipped),
        ("AttributeError: no such collective", RuntimeError),
        ("ncclSystemError: System call (e.g. socket, malloc) or external library call failed", RuntimeError),
    ],
)
def test_only_a_refusal_of_nccl_is_skipped(
    text: str, outcome: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_ranks(*_: Any, output: Path, **__: Any) -> list[Any]:
        output.write_text(text)
        raise RuntimeError("rank 0 of 2 failed with exit code 1")

    monkeypatch.setattr(two_ranks, "run_ranks", run_ranks)
    monkeypatch.setattr(two_ranks.torch.cuda.nccl, "version", lambda: (2, 27, 3))  # type: ignore[attr-defined]
    with pytest.raises(Exception) as raised:
        two_ranks.over_nccl("cuda")
    assert raised.type is outcome


def test_powersgd_that_does_not_compress_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_ranks(*_: Any, **__: Any) -> list[dict[str, Any]]:
        return [{"powersgd, own stream": {"losses": [2.0, 1.0], "weights_sha256": "a", "numbers_sent": sent}}] * 2

    sent = [1000, 1000, 300]
    monkeypatch.setattr(two_ranks, "run_ranks", run_ranks)
    two_ranks._compared("cuda", "gloo", ["syncs"])
    sent = [1000, 1000, 1000]
    with pytest.raises(Failed, match="1000 numbers travel in the last step, 1000 in the first"):
        two_ranks._compared("cuda", "gloo", ["syncs"])


@pytest.mark.slow
def test_powersgd_compresses_in_the_check() -> None:
    [first, *_] = run_ranks(two_ranks.all_cases, [HERE, HERE], 100, kind="syncs", device="cpu", steps=6)
    sent = first["powersgd, default stream"]["numbers_sent"]
    assert sent[0] > 10 * sent[-1]
