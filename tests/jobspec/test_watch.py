"""A script under `python -m jobspec.watch`: the rank that hangs is named; where none hangs, nothing changes."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from jobspec.watch import Watch
from tests.cli import start_ranks

_SCRIPT = """import json, os, signal, sys, threading
import torch, torch.distributed as dist
import train  # the script's own
def hang():
    if what == "SIGSTOP":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "other calls":
        dist.broadcast(torch.ones(1), 0)
    elif "lock" in what:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    elif what == "an error":
        raise ValueError("nan")
what, rank = sys.argv[1], int(os.environ["RANK"])
assert (train.MINE, __name__, sys.argv[1:]) == (1, "__main__", [what])
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.BatchNorm1d(1))
for step in range(4):
    if rank == 1 and step == 3:
        hang()
    model(torch.ones(2, 1)) if "DDP" in what else dist.all_reduce(torch.ones(1))
"""
_HANGS = {
    "a lock": r"rank 1 \(node 0, \S+, pid \d+\) is past collective call \d+ at mine.py:12: "
    r"the other ranks wait for it in all_reduce at mine.py:22",
    "a lock, DDP's buffers": r"rank 1 .* is past .* at mine.py:12: the other ranks wait for it in \w+ at mine.py:22",
    "SIGSTOP": r"rank 1 .* has given no sign of life since .*: its process is stopped",
    "other calls": r"rank 0 .* waits in collective call (\d+) at mine.py:22; rank 1 .* waits in collective call \1 "
    r"at mine.py:8: each waits for the others, so all ranks have to make the same calls",
}


@pytest.mark.parametrize("what", [*_HANGS, "an error", "nothing"])
def test_the_rank_that_hangs_is_named_in_any_script(what: str, python: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(_SCRIPT)
    (tmp_path / "train.py").write_text("MINE = 1\n")
    limit_s = "10" if what in _HANGS else "600"
    words = ("-m", "jobspec.watch", limit_s, str(tmp_path / "mine.py"), what)
    file = tmp_path / "error-{rank}"
    ranks = start_ranks(2, program=words, python=python, TORCHELASTIC_ERROR_FILE=str(file))
    try:
        error = ranks[0].communicate()[1]
        if what in _HANGS:
            said = re.search(rf"warning: no rank has made progress for \d+ s\. {_HANGS[what]}", error)
            assert said and ranks[0].returncode == 1, error
            assert "has made progress" in (tmp_path / "error-0").read_text()
        ranks[1].kill() if what in _HANGS else ranks[1].wait()
        assert "in hang" in ranks[1].communicate()[1] or ("lock" not in what and what != "an error")
        if what == "an error":
            assert "ValueError: nan" in (tmp_path / "error-1").read_text()
        if what == "nothing":
            assert [rank.returncode for rank in ranks] == [0, 0] and "progress" not in error
    finally:
        for rank in ranks:
            rank.kill()


def test_a_loop_that_mostly_waits_at_one_line_makes_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed  # noqa: F401  as in each script that is watched

    watch = object.__new__(Watch)
    watch._seen, watch._since, watch._limit_s = None, 0.0, 1.0
    here, elsewhere = sys._getframe(), sys._getframe(1)
    for moved, late in ((False, False), (False, True), (True, False)):
        seen = iter([*[here] * 30, elsewhere if moved else here, *[here] * 30])
        monkeypatch.setattr(watch, "_frames", lambda seen=seen: [(next(seen), 1)])
        watch._renew()
        assert bool(watch._late_s()) == late
        watch._since = 0.0


def test_where_nobody_waits_in_python_the_ranks_that_called_less_are_named() -> None:
    """So it is with NCCL, whose calls return at once: all ranks wait for the GPU, at any line."""
    calls = [{"0": 8, "1": 3}, {"0": 7, "1": 3}, {"0": 8}]
    signs: list[dict[str, Any]] = [
        {"who": f"rank {rank}", "does": "is past call", "place": f" at a.py:{rank}", "waits": False, "calls": counted}
        for rank, counted in enumerate(calls)
    ]
    said = Watch._judgement(object.__new__(Watch), [{}] * 3, signs)
    assert said == "rank 1 is past call at a.py:1: the other ranks wait for it"


def test_among_many_ranks_that_wait_the_one_that_waits_elsewhere_comes_first() -> None:
    places = [" at a.py:1"] * 9 + [" at a.py:7"]
    signs: list[dict[str, Any]] = [
        {"who": f"rank {rank}", "does": "waits", "place": place, "waits": True, "calls": {"0": 8 + (rank == 9)}}
        for rank, place in enumerate(places)
    ]
    said = Watch._judgement(object.__new__(Watch), [{}] * 10, signs)
    assert said.startswith("rank 9 waits at a.py:7; rank 0 waits at a.py:1; ")
    assert said.endswith(" …: each waits for the others, so all ranks have to make the same calls")
