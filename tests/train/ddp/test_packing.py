"""Buckets: every parameter in one, in order, of one kind, and closed as soon as its capacity is reached."""

from hypothesis import example, given
from hypothesis import strategies as st

from train.ddp.packing import assign_buckets


@st.composite
def parameters(draw: st.DrawFn) -> tuple[list[int], list[str], list[int]]:
    """Sizes in bytes, kinds, and an order of arrival."""
    count = draw(st.integers(0, 40))
    sizes = draw(st.lists(st.integers(0, 100), min_size=count, max_size=count))
    kinds = draw(st.lists(st.sampled_from(["float32", "bfloat16", "float64"]), min_size=count, max_size=count))
    return sizes, kinds, draw(st.permutations(range(count)))


capacities = st.floats(0.5, 300) | st.just(float("inf"))


@given(params=parameters(), first=capacities, others=capacities)
@example(params=([4, 4, 4, 4], ["float32"] * 4, [3, 2, 1, 0]), first=8, others=4)  # reached exactly
def test_each_parameter_is_in_one_bucket_of_its_kind_in_order_and_the_bucket_that_fills_first_comes_first(
    params: tuple[list[int], list[str], list[int]], first: float, others: float
) -> None:
    sizes, kinds, order = params
    buckets = assign_buckets(*params, first, others)
    assert sorted(index for bucket in buckets for index in bucket) == list(range(len(sizes)))
    assert all(buckets), "no bucket is empty"
    assert all(len({kinds[index] for index in bucket}) == 1 for bucket in buckets)
    for kind in set(kinds):
        in_buckets = [index for bucket in buckets for index in bucket if kinds[index] == kind]
        assert in_buckets == [index for index in order if kinds[index] == kind]

    seen: set[str] = set()
    last_of_kind = {kinds[bucket[0]]: number for number, bucket in enumerate(buckets)}
    for number, bucket in enumerate(buckets):
        kind = kinds[bucket[0]]
        capacity = others if kind in seen else first
        seen.add(kind)
        assert sum(sizes[index] for index in bucket[:-1]) < capacity
        to_come = sum(sizes[index] for later in buckets[number + 1 :] for index in later if kinds[index] == kind)
        least = min(capacity, first) if to_come <= first else capacity
        if number != last_of_kind[kind]:
            assert sum(sizes[index] for index in bucket) >= least, "only the last of a kind may stay open"
    full = [bucket for number, bucket in enumerate(buckets) if number != last_of_kind[kinds[bucket[0]]]]
    filled_at = [order.index(bucket[-1]) for bucket in full]
    assert filled_at == sorted(filled_at)


def test_the_end_of_a_large_last_bucket_is_a_bucket_as_small_as_the_first() -> None:
    cut = [[*range(4)], [*range(4, 29)], [*range(29, 46)], [*range(46, 50)]]
    assert assign_buckets([1] * 50, [""] * 50, range(50), 4, 25) == cut
    assert assign_buckets([1] * 20, [""] * 20, range(20), 4, 25) == [[*range(4)], [*range(4, 20)]]
