"""Assignment of parameters to buckets, computed from their sizes alone, without torch."""

from collections import Counter
from collections.abc import Hashable, Sequence


def assign_buckets(
    sizes_bytes: Sequence[int],
    kinds: Sequence[Hashable],
    order: Sequence[int],
    first_bucket_bytes: float,
    bucket_bytes: float,
) -> list[list[int]]:
    """Cut `order` into buckets; gradients of different kind (dtype, device) never share one.

    sizes_bytes, kinds: of each parameter, by its index.  order: indices as gradients arrive.
    first_bucket_bytes: capacity of the first bucket of each kind: small, so that communication starts early.
    bucket_bytes: of the others; the parameter that reaches the capacity is the last in its bucket.
    Returns lists of indices, each list in `order`; the list that fills up first comes first.
    """
    buckets: list[list[int]] = []
    open_buckets: dict[Hashable, list[int]] = {}
    capacity_bytes: dict[Hashable, float] = {}
    filled_bytes: Counter[Hashable] = Counter()
    bytes_to_come: Counter[Hashable] = Counter()
    for kind, size in zip(kinds, sizes_bytes, strict=True):
        bytes_to_come[kind] += size
    for index in order:
        kind = kinds[index]
        open_buckets.setdefault(kind, []).append(index)
        filled_bytes[kind] += sizes_bytes[index]
        bytes_to_come[kind] -= sizes_bytes[index]
        is_full = filled_bytes[kind] >= capacity_bytes.get(kind, first_bucket_bytes)
        # The end of a large last bucket travels apart, because no backward is left to hide it.
        if is_full or bytes_to_come[kind] <= first_bucket_bytes <= filled_bytes[kind] / 4:
            buckets.append(open_buckets.pop(kind))
            capacity_bytes[kind], filled_bytes[kind] = bucket_bytes, 0
    return buckets + list(open_buckets.values())
