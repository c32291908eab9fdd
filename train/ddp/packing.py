"""Assignment of parameters to buckets, computed from their sizes alone, without torch."""

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
    bytes_left: dict[Hashable, float] = {}
    for index in order:
        kind = kinds[index]
        open_buckets.setdefault(kind, []).append(index)
        bytes_left[kind] = bytes_left.get(kind, first_bucket_bytes) - sizes_bytes[index]
        if bytes_left[kind] <= 0:
            buckets.append(open_buckets.pop(kind))
            bytes_left[kind] = bucket_bytes
    return buckets + list(open_buckets.values())
