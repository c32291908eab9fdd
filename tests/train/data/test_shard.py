"""Which sample is read when: each exactly once, in an order that only seed and epoch decide."""

from hypothesis import assume, given
from hypothesis import strategies as st

from train.data.shard import epoch_order, share

# The one pair of seeds and epochs that Python's generator takes for the same: it adds up the words of its seed.
SAME_ORDER = {(0, 1), (2**32 - 1, 1)}

world_sizes = st.integers(1, 12)
seeds = st.integers(0, 2**32 - 1)
epochs = st.integers(1, 10_000)


@given(size=st.integers(0, 300) | st.sampled_from([9_999, 10_001]), seed=seeds, epoch=epochs)
def test_an_epoch_order_holds_each_sample_exactly_once(size: int, seed: int, epoch: int) -> None:
    assert sorted(epoch_order(size, seed, epoch)) == list(range(size))


@given(seed=seeds, other=seeds, epoch=epochs, later=epochs)
def test_order_is_decided_by_seed_and_epoch_together(seed: int, other: int, epoch: int, later: int) -> None:
    assume({(seed, epoch), (other, later)} != SAME_ORDER)
    same = epoch_order(64, seed, epoch) == epoch_order(64, other, later)
    assert same == ((seed, epoch) == (other, later))


def test_order_never_changes_with_our_code_or_with_python() -> None:
    # Written down once: a checkpoint of today has to be continued by the code of tomorrow.
    assert epoch_order(10, seed=0, epoch=1) == [8, 0, 3, 4, 5, 2, 9, 6, 7, 1]
    assert epoch_order(10, seed=1, epoch=1) == [5, 3, 8, 7, 9, 0, 4, 2, 6, 1]
    assert epoch_order(10, seed=0, epoch=2) == [4, 1, 6, 2, 3, 5, 7, 0, 8, 9]


@given(start=st.integers(0, 1000), length=st.integers(0, 300), world_size=world_sizes)
def test_shares_follow_one_another_and_differ_by_at_most_one(start: int, length: int, world_size: int) -> None:
    whole = range(start, start + length)
    shares = [share(whole, rank, world_size) for rank in range(world_size)]
    assert [position for one in shares for position in one] == list(whole)
    lengths = [len(one) for one in shares]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1
