"""The share of communication behind backward, on intervals that can be worked out by hand."""

import pytest

from benchmarks.overlap import overlap_share


@pytest.mark.parametrize(
    ("all_reduces", "backward_end", "share"),
    [
        pytest.param([(1.0, 2.0)], 3.0, 1.0, id="before the end of backward"),
        pytest.param([(3.0, 4.0)], 3.0, 0.0, id="after the end of backward"),
        pytest.param([(2.0, 6.0)], 3.0, 0.25, id="across the end of backward"),
        pytest.param([(2.0, 4.0), (0.0, 3.0), (1.0, 2.0)], 2.0, 0.5, id="two under way count once"),
        pytest.param([(0.0, 1.0), (9.0, 10.0)], 5.0, 0.5, id="time between two does not count"),
    ],
)
def test_share_is_of_the_time_in_which_an_all_reduce_is_under_way(
    all_reduces: list[tuple[float, float]], backward_end: float, share: float
) -> None:
    assert overlap_share(all_reduces, backward_end) == share


def test_no_all_reduce_has_no_share() -> None:
    with pytest.raises(ValueError, match="no all-reduce"):
        overlap_share([], backward_end=1.0)
