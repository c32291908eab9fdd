"""The GPU checks, run on the CPU for a few steps, so that the first GPU hour is not spent on typos."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import measure
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import (
    deaths,
    losses,
    memory,
    outcome,
    precisions,
    published,
    resume,
    sigterm,
    step_time,
    two_ranks,
)
from benchmarks.gpu.checks import CHECKS, Check
from benchmarks.gpu.outcome import Failed, Skipped
from train.config import available
from train.flags import from_argv

_HERE = "tests.benchmarks.test_gpu"

pytestmark = pytest.mark.timeout(580)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU here; CUDA_VISIBLE_DEVICES= hides it")
def test_without_a_gpu_each_check_says_so_in_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.main([f"--results={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines] == [f"({name})" for name in [*"cedhgfkjbinlm", "a1", "a2"]]
    assert all(line.endswith("torch sees no GPU here") for line in lines)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU here; CUDA_VISIBLE_DEVICES= hides it")
def test_a_letter_stands_for_all_its_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["a", "c", "a2", f"--results={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["(a1)", "(a2)", "(c)"]
    with pytest.raises(SystemExit):
        gpu.main(["z"])
    assert "there is no check z; there are c, e, d" in capsys.readouterr().err


def passing(device: str) -> dict[str, Any]:
    return {"device": device}


def failing(device: str) -> dict[str, Any]:
    raise Failed("it is wrong", {"figure": 0.5})


def endless(device: str) -> dict[str, Any]:
    import time

    time.sleep(1000)
    return {}


def test_a_failure_or_a_check_without_end_stops_no_other_and_all_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = {name: Check(name, f"{_HERE}:{name}", 20) for name in ("failing", "passing")}
    checks["endless"] = Check("endless", f"{_HERE}:endless", 8)
    monkeypatch.setattr(gpu, "CHECKS", checks)
    assert gpu.main(["--device=cpu", f"--results={tmp_path}"]) == 1
    record = json.loads((tmp_path / "gpu_on_cpu.json").read_text())
    outcomes = {name: check["outcome"] for name, check in record["checks"].items()}
    assert outcomes == {"failing": "failed", "passing": "passed", "endless": "failed"}
    assert record["checks"]["failing"]["figure"] == 0.5
    assert "not done within 8 s" in record["checks"]["endless"]["why"]
    assert str(tmp_path) not in json.dumps(record)

    # Another run adds to the record.
    monkeypatch.setattr(gpu, "CHECKS", {**checks, "more": Check("more", f"{_HERE}:passing", 20)})
    assert gpu.main(["more", "--device=cpu", f"--results={tmp_path}"]) == 0
    assert set(json.loads((tmp_path / "gpu_on_cpu.json").read_text())["checks"]) == {*checks, "more"}


def test_every_function_of_a_check_is_there() -> None:
    assert all(callable(check.load()) for check in CHECKS.values())
    assert max(check.limit_s for check in CHECKS.values()) <= 560, "a command may have ten minutes"


def test_without_torchvision_what_needs_it_is_skipped_and_the_record_is_still_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(package: str) -> str:
        if package == "torchvision":
            raise PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(outcome, "find_spec", lambda name: None if name == "torchvision" else find_spec(name))
    monkeypatch.setattr(measure, "version", absent)
    monkeypatch.setattr(losses, "losses_of", lambda *given: [2.0 - 0.1 * step for step in range(given[3])])
    with pytest.raises(
        Skipped, match=r"^mlp: passed; resnet18: torchvision is not installed: pip install torchvision$"
    ):
        losses.run("cpu", ("mlp", "resnet18"))
    for check in (resume.run, step_time.run, precisions.run, published.mnist):
        with pytest.raises(Skipped, match="torchvision is not installed"):
            check("cpu")
    monkeypatch.setattr(gpu, "CHECKS", {"passing": Check("passing", f"{_HERE}:passing", 20)})
    assert gpu.main(["--device=cpu", f"--results={tmp_path}"]) == 0
    assert json.loads((tmp_path / "gpu_on_cpu.json").read_text())["machine"]["versions"]["torchvision"] is None


def test_two_ranks_train_alike_with_every_sync_and_with_an_empty_rank() -> None:
    found = two_ranks.over_gloo("cpu")["largest_difference"]
    assert len(found) == 2 * len(available("sync"))
    assert set(found.values()) == {0.0}
    record = two_ranks.marked_tests("cpu")["batchnorm"]
    assert record["largest_difference"] == {"batchnorm: fp32": 0.0, "batchnorm: bf16": 0.0}
    for of_ranks in record["collectives_by_step"].values():
        assert of_ranks["rank 0"] == of_ranks["rank 1"]
        # In step 2 rank 1 has no samples: statistics of two layers forth, their gradients back.
        assert of_ranks["rank 1"][1].split("; ").count("all_reduce of 256 float32") == 2


def test_an_order_of_collectives_that_differs_between_the_ranks_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_ranks(*_: Any, device: str, **__: Any) -> list[dict[str, Any]]:
        same = {"losses": [2.0, 1.0], "weights_sha256": "a", "numbers_sent": [384, 384]}
        statistics, bucket = "all_reduce of 256 float32", "all_reduce of 128 bfloat16"
        orders = [[[statistics], [statistics, bucket]], [[statistics], [bucket, statistics]]]
        return [{"fp32": {**same, "collectives": order}} for order in orders]

    monkeypatch.setattr(two_ranks, "run_ranks", run_ranks)
    with pytest.raises(
        Failed, match="fp32: collective 1 of step 2 is all_reduce of 256 float32 on rank 0 and"
    ) as failed:
        two_ranks._compared("cuda", "nccl", ["batchnorm"], steps=2)
    assert len(failed.value.record["collectives_by_step"]["fp32"]) == 2


def test_a_survivor_that_hangs_in_a_collective_speaks_before_the_check_ends_it() -> None:
    config = from_argv(list(deaths.FLAGS))
    assert config.collective_timeout_s == deaths.TIMEOUT_S
    # Two of these, each with a start and with what torch's watchdog waits for, fit into the check.
    assert deaths.LIMITS_S["cuda"] >= deaths.TIMEOUT_S + deaths.DUMP_S
    assert 2 * (60 + deaths.LIMITS_S["cuda"] + 10) + 30 < CHECKS["f"].limit_s


def test_death_of_a_rank_is_named_and_timed(tmp_path: Path) -> None:
    killed = deaths.killed("cpu", tmp_path / "killed")
    exhausted = deaths.out_of_memory("cpu", tmp_path / "memory")
    for record in (killed, exhausted):
        assert 0 < record["seconds_to_name"] <= record["seconds"] < deaths.LIMITS_S["cpu"]
        assert "rank 1" in record["message"] and "node 1" not in record["message"]


def test_input_is_read_for_some_epochs() -> None:
    found = memory.run("cpu", epochs=6)
    assert {input: len(record["reserved_mib"]) for input, record in found.items()} == {
        "memory": 6,
        "loader": 6,
        "auto": 6,
    }


def test_memory_that_grows_fails_and_an_input_that_fails_leaves_the_figures_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def reserved_mib(device: str, input: str, epochs: int) -> list[float]:
        if input == "memory":
            raise RuntimeError("no memory")
        return [1.0] * 5 + [3.0 if input == "loader" else 1.0]

    monkeypatch.setattr(memory, "reserved_mib", reserved_mib)
    with pytest.raises(Failed, match="loader: reserved memory grew by 2 MiB after epoch 5; auto: passed") as failed:
        memory.run("cpu")
    assert failed.value.record["auto"]["grown_mib"] == 0


def test_step_times_are_measured() -> None:
    found = step_time.run("cpu", "--workload=mlp", "--rounds=1", "--steps=1")
    assert found["losses_agree"] == {"mlp": True}


def test_a_resume_is_compared_with_a_run_without_interruption() -> None:
    # A small model: each of the six runs ends with a whole evaluation.
    found = resume.run("cpu", steps=4, model="mlp")
    assert [found[f"{word}_deterministic"]["same_weights"] for word in ("without", "with")] == [True, True]


def test_a_resume_that_differs_fails_only_with_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "hashes", lambda *_: ("a", "b"))
    with pytest.raises(Failed, match="without_deterministic: passed; with_deterministic: the weights") as failed:
        resume.run("cpu", model="mlp")
    assert failed.value.record["without_deterministic"]["same_weights"] is False


def test_sigterm_saves_and_the_next_start_continues() -> None:
    found = sigterm.run("cpu")
    assert found["exit_code"] == 143
    assert found["continued_at_step"] == found["stopped_at_step"] + 1
