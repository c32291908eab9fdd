"""Buckets as the first backward shows that they should be: in the order in which gradients arrived on rank 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import nn

from train.broadcast import broadcast_from_rank_0
from train.bucket import Bucket
from train.buckets import assign_buckets
from train.sync import Sync


def lay_out(
    arrivals: Sequence[int],
    names: Sequence[str],
    params: Sequence[nn.Parameter],
    sync: Sync,
    first_bucket_bytes: float,
    bucket_bytes: float,
) -> tuple[list[Bucket], dict[int, tuple[Bucket, int]]]:
    """A collective.  Returns the buckets, and of each parameter the bucket and its slot there.

    Args:
        arrivals: indices of parameters as their gradients arrived on this rank, some perhaps more than once.
    """
    last = {index: time for time, index in enumerate(arrivals)}
    # Parameters without a gradient come last: a bucket that one of them keeps open holds up no other.  They are in the
    # order in which a backward that uses them will most likely come by.
    order = sorted(reversed(range(len(params))), key=lambda index: last.get(index, len(arrivals)))
    shared = torch.tensor(order, device=params[0].device)
    broadcast_from_rank_0([shared], sync.group)
    lists = assign_buckets(
        [param.numel() * param.element_size() for param in params],
        [(param.dtype, param.device) for param in params],
        [int(index) for index in shared.tolist()],
        first_bucket_bytes,
        bucket_bytes,
    )
    times = Counter(arrivals)
    buckets: list[Bucket] = []
    places: dict[int, tuple[Bucket, int]] = {}
    for indices in lists:
        bucket = Bucket(
            [params[index] for index in indices],
            [names[index] for index in indices],
            [times[index] or 1 for index in indices],
            sync,
        )
        buckets.append(bucket)
        places |= {index: (bucket, slot) for slot, index in enumerate(indices)}
    return buckets, places
