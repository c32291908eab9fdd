"""The ranks learn of a signal after the same step, and however fast their steps were, not many steps later."""

import pytest

from tests.ranks import run_ranks
from train.collectives.agreement import StopAgreement
from train.world.environment import World
from train.world.signals import StopSignal

pytestmark = pytest.mark.timeout(120)


def _steps_until_agreed(world: World) -> int:
    stop = StopSignal()
    agreement = StopAgreement(stop)
    # So fast that a second holds very many of them; the next ones may take as long as they like.
    for _ in range(1100):
        assert not agreement.reached()
    stop.heard = world.rank == 1
    steps = 1
    while not agreement.reached():
        steps += 1
    return steps


def test_after_many_fast_steps_a_signal_is_heard_by_all_within_32_steps() -> None:
    of_ranks = run_ranks(2, _steps_until_agreed)
    assert of_ranks[0] == of_ranks[1] <= 32
