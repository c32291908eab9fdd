"""The ranks learn of a signal after the same step, and however fast their steps were, not many steps later."""

import os
import re
import signal
import time
from contextlib import redirect_stderr
from io import StringIO
from unittest import mock

from tests.ranks import run_ranks
from train.collectives import agreement
from train.collectives.agreement import Stop, StopAgreement
from train.world.environment import World
from train.world.signals import StopSignal


def _steps_until_agreed(world: World) -> int:
    stop = StopSignal()
    stops = StopAgreement(stop)
    # So fast that a second holds very many of them; the next ones may take as long as they like.
    for _ in range(1100):
        assert not stops.reached()
    stop.heard = world.rank == 1
    steps = 1
    while not stops.reached():
        steps += 1
    return steps


def test_after_many_fast_steps_a_signal_is_heard_by_all_within_32_steps() -> None:
    of_ranks = run_ranks(2, _steps_until_agreed)
    assert of_ranks[0] == of_ranks[1] <= 32


def _heard(world: World) -> list[bool]:
    stop = Stop()
    heard = [stop()]
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM)[: 3 * world.rank]:
        os.kill(os.getpid(), number)
    return [*heard, stop() or stop()]


def test_signals_to_one_rank_stop_all_ranks_of_any_loop_together() -> None:
    assert run_ranks(2, _heard) == [[False, True]] * 2


def _said_while_others_wait(world: World) -> str:
    said = StringIO()

    def work() -> None:
        while world.rank == 1 and not said.getvalue():
            time.sleep(0.01)

    with mock.patch.object(agreement, "_LATE_S", 0.1), redirect_stderr(said):
        agreement.while_others_wait(world, work, "saving")
    return said.getvalue()


def test_a_rank_whose_disk_does_not_answer_says_so() -> None:
    of_rank_0, of_rank_1 = run_ranks(2, _said_while_others_wait)
    assert of_rank_0 == ""
    assert re.fullmatch(r"warning: rank 1 has been saving for [0-9]+ s, and the run waits .* answer[?]\n", of_rank_1)
