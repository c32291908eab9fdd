"""float32 gradients travel as bfloat16: half the bytes, all of the range, 8 bits of precision."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from train.sync import Payload, Sync, Waitable
from train.sync.all_reduce import all_reduce_mean, prescale_of_backend


class Bf16(Sync):
    """Mean over the ranks of gradients rounded to bfloat16; other types than float32 travel as they are.

    Gradients are divided by the number of ranks in float32, on their way into the bucket.  So the sum is the mean,
    whatever 1/N would be in bfloat16.  Relative error: up to 2**-8 for the rounding and for each addition.
    """

    def prescale(self, dtype: torch.dtype, device: torch.device) -> float:
        if dtype == torch.float32:
            return 1.0 / self.world_size
        return prescale_of_backend(self.group, dtype, device)

    def reduce(self, payload: Payload) -> Waitable:
        if payload.flat.dtype != torch.float32:
            return all_reduce_mean(payload.flat, self.group)
        narrow = payload.flat.bfloat16()
        return _Widening(dist.all_reduce(narrow, dist.ReduceOp.SUM, self.group, async_op=True), narrow, payload.flat)


@dataclass
class _Widening:
    """Waits for a sum in bfloat16 and copies it into float32."""

    work: Waitable
    narrow: Tensor
    flat: Tensor

    def wait(self) -> None:
        self.work.wait()
        self.flat.copy_(self.narrow)


make = Bf16
