"""The cost model against steps that can be worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cost_model import Link, Schedule, all_reduce_seconds, fit_link, predict_step

# 1 s a bucket on two ranks: two messages of 50 bytes at 0.01 s a byte.
LINK = Link(alpha_s=0.0, beta_s_per_byte=0.01)


def schedule(*full_s: float, backward_end_s: float, step_s: float, bucket_bytes: int = 100) -> Schedule:
    return Schedule((bucket_bytes,) * len(full_s), full_s, backward_end_s, step_s)


def test_ring_sends_two_times_p_minus_1_messages_of_a_p_th_each() -> None:
    link = Link(alpha_s=0.5, beta_s_per_byte=0.01)
    assert all_reduce_seconds(100, 4, link) == pytest.approx(2 * 3 * (0.5 + 25 * 0.01))


def test_one_rank_has_nothing_to_send() -> None:
    step = predict_step(schedule(1.0, 2.0, backward_end_s=2.0, step_s=2.5), 1, Link(1.0, 1.0))
    assert step.seconds == pytest.approx(2.5)


def test_bucket_that_travels_during_backward_costs_nothing() -> None:
    step = predict_step(schedule(1.0, backward_end_s=5.0, step_s=6.0), 2, LINK)
    assert step.seconds == pytest.approx(6.0)
    assert step.overlap_share == pytest.approx(1.0)


def test_last_bucket_is_always_exposed() -> None:
    step = predict_step(schedule(1.0, 5.0, backward_end_s=5.0, step_s=6.0), 2, LINK)
    assert step.seconds == pytest.approx(7.0)
    assert step.overlap_share == pytest.approx(0.5)


def test_bucket_waits_for_the_one_before() -> None:
    # The first is under way from 1.0 to 2.0, the second from 2.0 to 3.0; backward ends at 1.5, the optimizer takes 1.
    step = predict_step(schedule(1.0, 1.5, backward_end_s=1.5, step_s=2.5), 2, LINK)
    assert step.seconds == pytest.approx(4.0)
    assert step.overlap_share == pytest.approx(0.25)


def test_cores_that_move_bytes_compute_later() -> None:
    # 100 bytes sent by each of two ranks on one core: 100 · 0.002 · 2 = 0.4 s in which nobody computes.
    link = Link(alpha_s=0.0, beta_s_per_byte=0.01, core_s_per_byte=0.002)
    step = predict_step(schedule(1.0, backward_end_s=5.0, step_s=6.0), 2, link, cores=1)
    assert step.seconds == pytest.approx(6.4)


def test_cores_have_time_for_bytes_once_backward_is_over() -> None:
    link = Link(alpha_s=0.0, beta_s_per_byte=0.01, core_s_per_byte=0.002)
    step = predict_step(schedule(5.0, backward_end_s=5.0, step_s=6.0), 2, link, cores=1)
    assert step.seconds == pytest.approx(7.0)


def test_fit_finds_the_link_that_made_the_measurements() -> None:
    rows = [(n, p, rate) for n in (1000, 10**6, 10**7) for p in (2, 3) for rate in (1e7, 1e8)]
    seconds = [all_reduce_seconds(n, p, Link(0.003, 1.05 / rate)) for n, p, rate in rows]
    sizes, ranks, rates = zip(*rows, strict=True)

    fit = fit_link(sizes, ranks, rates, seconds)

    assert fit.alpha_s == pytest.approx(0.003)
    assert fit.overhead == pytest.approx(1.05)
    assert fit.link(8.0).beta_s_per_byte == pytest.approx(1.05e-6)


def test_fit_refuses_measurements_of_one_size() -> None:
    with pytest.raises(ValueError, match="at least two sizes"):
        fit_link([100, 100], [2, 2], [1e6, 1e6], [1.0, 1.1])


@given(
    full_s=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=6).map(sorted),
    ranks=st.integers(2, 1024),
    alpha_s=st.floats(0.0, 0.01),
    beta=st.floats(0.0, 0.1),
    core=st.floats(0.0, 0.01),
)
def test_step_lies_between_perfect_overlap_and_none(
    full_s: list[float], ranks: int, alpha_s: float, beta: float, core: float
) -> None:
    step_schedule = schedule(*full_s, backward_end_s=full_s[-1], step_s=full_s[-1] + 1.0)
    link = Link(alpha_s, beta, core)
    wire_s = len(full_s) * all_reduce_seconds(100, ranks, link)
    cores_s = len(full_s) * 2 * (ranks - 1) / ranks * 100 * core * ranks / 2

    step = predict_step(step_schedule, ranks, link, cores=2)

    assert 0.0 <= step.overlap_share <= 1.0
    least = max(step_schedule.step_s, full_s[0] + wire_s + 1.0)
    assert least * (1 - 1e-9) <= step.seconds <= (step_schedule.step_s + wire_s + cores_s) * (1 + 1e-9)
