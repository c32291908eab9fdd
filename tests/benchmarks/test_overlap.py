"""The share of communication behind backward, on intervals that can be worked out by hand."""

from __future__ import annotations

import pytest

from benchmarks.overlap import overlap_share


def test_all_reduce_before_the_end_of_backward_overlaps() -> None:
    assert overlap_share([(1.0, 2.0)], backward_end=3.0) == 1.0


def test_all_reduce_after_the_end_of_backward_is_exposed() -> None:
    assert overlap_share([(3.0, 4.0)], backward_end=3.0) == 0.0


def test_all_reduce_across_the_end_of_backward_overlaps_in_part() -> None:
    assert overlap_share([(2.0, 6.0)], backward_end=3.0) == 0.25


def test_time_in_which_two_are_under_way_counts_once() -> None:
    assert overlap_share([(2.0, 4.0), (0.0, 3.0), (1.0, 2.0)], backward_end=2.0) == 0.5


def test_time_between_two_all_reduces_does_not_count() -> None:
    assert overlap_share([(0.0, 1.0), (9.0, 10.0)], backward_end=5.0) == 0.5


def test_no_all_reduce_has_no_share() -> None:
    with pytest.raises(ValueError, match="no all-reduce"):
        overlap_share([], backward_end=1.0)
