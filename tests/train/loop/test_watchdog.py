"""A rank that hangs in mid-run is named within a minute; a slow evaluation is not reported.

tests/faults has a rank that is stopped.
"""

import re
import subprocess
import threading
from pathlib import Path
from unittest import mock

from tests.cli import start_ranks
from train.loop.watchdog import Watchdog
from train.world.environment import World

# The test's signal comes from the program itself, at a step: no clock is involved.
_PROGRAM = """import os, sys, time, types
from train.__main__ import main
import train.run
from train.loop import heartbeat, watchdog
from train.loop.watchdog import Watchdog
from train.loop.step import Step
rank, what, steps, run = int(os.environ["RANK"]), sys.argv.pop(1), [], Step.run
def hang():
    time.sleep(1000)  # the user's code waits here
def my_run(*args):
    steps.append(1)
    if len(steps) == 4 and rank == 1 and what.startswith("hangs"):
        hang()
    return run(*args)
Step.run, real = my_run, train.run.evaluate
# The clock stands still, but each look at it during the evaluation finds 100 s more: no other step is slow.
now, looks, evaluating, renew = 0.0, 0, False, Watchdog._renew
def my_renew(self):
    global now, looks
    now, looks = now + 100 * evaluating, looks + 1
    renew(self)
def wait_for_looks():
    end = looks + 6
    while looks < end:
        time.sleep(0.01)
def evaluate(*args):
    global evaluating
    evaluating = True
    if rank == 1:
        wait_for_looks()
    result = real(*args)
    evaluating = False
    wait_for_looks()
    return result
if what == "hangs before its first sign" and rank == 1:
    Watchdog._run = lambda self: None
if what == "slow evaluation":
    train.run.evaluate, Watchdog._renew, watchdog.BEAT_S = evaluate, my_renew, 0.1
    heartbeat.time = watchdog.time = types.SimpleNamespace(monotonic=lambda: now)
sys.exit(main(sys.argv[1:]))
"""
_FLAGS = ["--model=mlp", "--device=cpu", "--batch-size=64", "--max-steps=8", "--log-every=1"]


def _start(what: str, tmp_path: Path, *flags: str) -> list[subprocess.Popen[str]]:
    (tmp_path / "program.py").write_text(_PROGRAM)
    return start_ranks(2, *_FLAGS, *flags, program=(str(tmp_path / "program.py"), what))


def test_a_rank_that_hangs_is_named_and_at_the_timeout_the_stacks_are_written(tmp_path: Path) -> None:
    ranks = _start("hangs", tmp_path, "--collective-timeout-s=60")
    says = r"rank 1 \(node 0, \S+, pid {}\) is in step 4 at program.py:\d+: the other ranks wait for it"
    try:
        _, error = ranks[0].communicate()
        warned = re.search(rf"warning: no step has ended for \d+ s\. {says.format(ranks[1].pid)}", error)
        assert warned and ranks[0].returncode == 1, error
        # shared memory notices the timeout itself; the stacks come first
        assert re.search(r"warning: rank 0: no step has ended for \d+ s; the stacks", error) and "_complete" in error, (
            error
        )
        ranks[1].kill()
        assert re.search(r'File ".*program.py", line \d+ in hang', ranks[1].communicate()[1])
    finally:
        for rank in ranks:
            rank.kill()


def test_a_rank_that_hangs_before_its_first_sign_is_named(tmp_path: Path) -> None:
    ranks = _start("hangs before its first sign", tmp_path, "--collective-timeout-s=60")
    try:
        error = ranks[0].communicate()[1]
        assert "rank 1 of 2 has given no sign of life since its start: its process is stopped" in error, error
    finally:
        for rank in ranks:
            rank.kill()


def test_a_slow_evaluation_is_not_reported(tmp_path: Path) -> None:
    ranks = _start("slow evaluation", tmp_path)
    outputs = [rank.communicate()[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0] and "warning" not in "".join(outputs), outputs


def test_the_owner_of_a_folder_is_renewed_again_and_again_until_the_run_is_over() -> None:
    renewed = threading.Semaphore(0)
    with mock.patch("train.loop.watchdog.BEAT_S", 0.01):
        watchdog = Watchdog(World(), 1.0, lambda: True, [mock.Mock(renew=renewed.release)])
        assert all(renewed.acquire() for _ in range(3))
        watchdog.stop()
        (thread,) = (thread for thread in threading.enumerate() if thread.name.endswith("(_run)"))
        thread.join()
