"""A rank that fails prints its reason and ends at once, whatever its groups still wait for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import ROOT, environment, records, start_ranks
from tests.ranks import train_on_ranks
from train.errors import record_for_torchrun

# `python -m train` with one more process group: like NCCL's with work pending, it does not end before that work does.
# Rank FAILS runs out of memory in its third forward pass, while the other ranks reach that step's all-reduce.
_PROGRAM = """
import os, runpy, sys
import torch
import torch.distributed as dist
from train import models
from train.world import placement

class NeverDone(dist.ProcessGroup):
    def shutdown(self):
        print("waits for pending work", flush=True)
    abort = shutdown

dist.Backend.register_backend("neverdone", lambda store, rank, size, timeout: NeverDone(rank, size), devices=["cpu"])

def gradient_group(*_):
    dist.new_group(backend="neverdone")

calls = 0
def fail(module, inputs):
    global calls
    calls += inputs[0].device.type == "cpu"  # not the look at how few samples the model can be trained on
    if calls == 3 and os.environ.get("RANK", "0") == os.environ["FAILS"]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

build = models.build
def failing(*arguments):
    model = build(*arguments)
    model.register_forward_pre_hook(fail)
    return model

placement.gradient_group, models.build = gradient_group, failing
sys.argv[0] = "train"
runpy.run_module("train", run_name="__main__", alter_sys=True)
"""
_FLAGS = ["--model=mlp", "--max-steps=20", "--batch-size=8"]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "program.py"
    file.write_text(_PROGRAM)
    return file


def test_alone_or_as_one_of_two_a_failing_rank_prints_its_traceback_and_ends_at_once(program: Path) -> None:
    for world_size, fails in [(1, 0), (2, 1)]:
        ranks = start_ranks(world_size, *_FLAGS, program=[str(program)], FAILS=str(fails))
        out, err = ranks[fails].communicate()
        others = [rank.communicate() for rank in ranks if rank is not ranks[fails]]
        assert "Traceback" in err
        assert "torch.OutOfMemoryError: CUDA out of memory" in err
        assert "waits for pending work" not in out
        assert [rank.returncode for rank in ranks] == [1] * world_size
        # The other rank was in the middle of a collective; what it says names the missing one.
        assert all("rank 1" in said and "ended" in said and "Traceback" not in said for _, said in others), others


def test_the_other_ranks_say_why_one_failed_and_rank_0_saves_the_last_whole_step(program: Path, tmp_path: Path) -> None:
    flags = [*_FLAGS, f"--checkpoint-dir={tmp_path / 'checkpoints'}", f"--run-dir={tmp_path}"]
    ranks = start_ranks(2, *flags, program=[str(program)], FAILS="1")
    said = ["".join(rank.communicate()) for rank in ranks]
    reason = "rank 1 failed: OutOfMemoryError('CUDA out of memory. Tried to allocate 20.00 MiB.')"
    assert reason in said[0], said
    assert "rank 0 failed" not in said[0]
    assert "saved the last complete step, 2; --resume=auto continues there" in said[0]
    assert "the losses of steps 1 to 2 were not yet recorded, and are lost" in said[0]
    train_on_ranks(2, *flags, "--resume=auto")
    assert [record["step"] for record in records(tmp_path, "step")] == [*range(3, 21)]
    # The losses of the first two steps went with rank 1, and the record says of how many samples its mean is.
    assert [(record["samples"], record["samples_read"]) for record in records(tmp_path, "epoch")] == [(144, 160)]


def test_torchrun_shows_the_traceback_of_the_rank_that_failed_first(program: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ended = subprocess.run(
        [*torchrun, str(program), *_FLAGS],
        env=environment(FAILS="1"),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    root_cause = ended.stderr.partition("Root Cause")[2]
    assert "rank      : 1" in root_cause
    assert "torch.OutOfMemoryError: CUDA out of memory" in root_cause
    assert "N/A" not in ended.stderr.partition("Failures:")[2].replace("error_file: <N/A>", "")
    assert "rank 1 ended" in ended.stderr or "from rank 1: ended" in ended.stderr


def test_without_torchrun_nothing_is_written_and_a_lost_folder_hides_nothing(tmp_path: Path) -> None:
    record_for_torchrun("no reason", environ={})
    record_for_torchrun("no reason", environ={"TORCHELASTIC_ERROR_FILE": str(tmp_path / "gone" / "error.json")})
    file = tmp_path / "error.json"
    record_for_torchrun("a reason", environ={"TORCHELASTIC_ERROR_FILE": str(file)})
    assert json.loads(file.read_text())["message"]["message"] == "a reason"
    assert list(tmp_path.iterdir()) == [file]
