"""float32 gradients travel as bfloat16: half the bytes, all of the range, 8 bits of precision."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from train.bucket import Bucket
from train.sync import Sync, Waitable
from train.sync.all_reduce import all_reduce_mean, prescale_of_backend


class Bf16(Sync):
    """Mean over the ranks of gradients rounded to bfloat16; other types than float32 travel as they are.

    Relative error of a mean: up to 2**-8 for the rounding before the sum and for each addition in it.
    """

    def prescale(self, device: torch.device) -> float:
        return prescale_of_backend(self.group, device)

    def reduce(self, bucket: Bucket) -> Iterator[Waitable]:
        if bucket.flat.dtype != torch.float32:
            yield all_reduce_mean(bucket.flat, self.group)
            return
        narrow = bucket.flat.bfloat16()
        yield all_reduce_mean(narrow, self.group)
        bucket.flat.copy_(narrow)


make = Bf16
