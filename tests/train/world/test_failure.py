"""A rank that fails prints its reason and ends at once, whatever its groups still wait for."""

import json
import re
import time
from pathlib import Path

import pytest

from tests.cli import start_ranks
from train.errors import record_for_torchrun

pytestmark = pytest.mark.timeout(400)
_TIMEOUT_S = 200.0
_AT_ONCE_S = 2.0

# `python -m train` with one more process group: like NCCL's with work pending, it does not end before that work does.
# Rank FAILS runs out of memory in its third forward pass, while the other ranks reach that step's all-reduce.
_PROGRAM = f"""
import os, runpy, sys, time
import torch
import torch.distributed as dist
from train import models
from train.world import placement

class NeverDone(dist.ProcessGroup):
    def shutdown(self):
        print("waits for pending work", flush=True)
        time.sleep({_TIMEOUT_S})
    abort = shutdown

dist.Backend.register_backend("neverdone", lambda store, rank, size, timeout: NeverDone(rank, size), devices=["cpu"])

def gradient_group(*_):
    dist.new_group(backend="neverdone")

calls = 0
def fail(module, inputs):
    global calls
    calls += inputs[0].device.type == "cpu"  # not the look at how few samples the model can be trained on
    if calls == 3 and os.environ.get("RANK", "0") == os.environ["FAILS"]:
        print("fails at", time.time(), flush=True)
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


def test_alone_or_as_one_of_two_a_failing_rank_prints_its_traceback_and_ends_at_once(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    for world_size, fails in [(1, 0), (2, 1)]:
        ranks = start_ranks(world_size, *_FLAGS, program=[str(program)], FAILS=str(fails))
        out, err = ranks[fails].communicate(timeout=_TIMEOUT_S)
        failed = re.search(r"fails at ([\d.]+)", out)
        assert failed and time.time() - float(failed[1]) < _AT_ONCE_S, out
        others = [rank.communicate(timeout=_TIMEOUT_S) for rank in ranks if rank is not ranks[fails]]
        assert "Traceback" in err
        assert "torch.OutOfMemoryError: CUDA out of memory" in err
        assert [rank.returncode for rank in ranks] == [1] * world_size
        # The other rank was in the middle of a collective; what it says names the missing one.
        assert all("rank 1" in said and "ended" in said and "Traceback" not in said for _, said in others), others


def test_without_torchrun_nothing_is_written_and_a_lost_folder_hides_nothing(tmp_path: Path) -> None:
    record_for_torchrun("no reason", environ={})
    record_for_torchrun("no reason", environ={"TORCHELASTIC_ERROR_FILE": str(tmp_path / "gone" / "error.json")})
    file = tmp_path / "error.json"
    record_for_torchrun("a reason", environ={"TORCHELASTIC_ERROR_FILE": str(file)})
    assert json.loads(file.read_text())["message"]["message"] == "a reason"
    assert list(tmp_path.iterdir()) == [file]
