"""float32 gradients travel as float16, scaled to its range: half the bytes, 11 bits of precision."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator

import torch

from train.bucket import Bucket
from train.sync import Sync, Waitable
from train.sync.all_reduce import all_reduce_mean, prescale_of_backend

# The largest mean is scaled to this; the largest float16 is 65504, so single ranks and sums may be 64 times as large.
_TARGET = 1024.0
# A scale must be a float32 itself.
_LARGEST_EXPONENT = 120


class Fp16(Sync):
    """Mean over the ranks of gradients scaled and rounded to float16; other types than float32 travel as they are.

    The scale of a bucket is a power of two that follows the largest mean of the step before, which all ranks hold.  If
    a sum leaves the range all the same, or in the first step, the bucket travels in float32.  So no finite gradient
    becomes infinite; infinities of the loss scaler arrive.  Relative error of a mean: 2**-11 for the rounding before
    the sum and for each addition in it; gradients below 2**-34 of the largest mean of the step before are lost.

    On CUDA it waits for the device once a bucket.
    """

    def __init__(self, group: torch.distributed.ProcessGroup) -> None:
        super().__init__(group)
        self._scales: weakref.WeakKeyDictionary[Bucket, float] = weakref.WeakKeyDictionary()

    def prescale(self, device: torch.device) -> float:
        return prescale_of_backend(self.group, device)

    def reduce(self, bucket: Bucket) -> Iterator[Waitable]:
        if bucket.flat.dtype != torch.float32:
            yield all_reduce_mean(bucket.flat, self.group)
            return
        scale = self._scales.get(bucket)
        gradients = bucket.flat[: -len(bucket.used)]
        largest = math.inf
        if scale is not None:
            narrow = torch.empty_like(bucket.flat, dtype=torch.float16)
            torch.mul(gradients, scale, out=narrow[: len(gradients)])
            narrow[len(gradients) :] = bucket.used
            yield all_reduce_mean(narrow, self.group)
            largest = narrow[: len(gradients)].abs().amax().item() / scale
        if scale is None or not math.isfinite(largest):
            yield all_reduce_mean(bucket.flat, self.group)
            largest = gradients.abs().amax().item()
        else:
            bucket.flat.copy_(narrow)
            gradients.mul_(1.0 / scale)
        # Without a finite largest one, or with none but zeros, the next step finds its scale anew.
        if 0.0 < largest < math.inf:
            self._scales[bucket] = 2.0 ** min(math.log2(_TARGET) - math.ceil(math.log2(largest)), _LARGEST_EXPONENT)
        else:
            self._scales.pop(bucket, None)


make = Fp16
