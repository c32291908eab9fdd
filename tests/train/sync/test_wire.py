"""What each sync sends, with the backends that are not here: NCCL's arithmetic, for any number of ranks."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from train.sync import Payload, Sync
from train.sync.all_reduce import AllReduce
from train.sync.bf16 import Bf16


class _Backend:
    def name(self) -> str:
        return "nccl"


class _Group:
    """What a sync asks of a group."""

    def _get_backend(self, device: torch.device) -> _Backend:
        return _Backend()


class _Done:
    def wait(self) -> None:
        pass


def _mean_of_ranks(make: type[Sync], world_size: int, dtype: torch.dtype, patch: pytest.MonkeyPatch) -> Tensor:
    """The mean of each of many gradients divided by the right one, after a reduction in NCCL's arithmetic."""
    sent: list[Tensor] = []

    def all_reduce(tensor: Tensor, op: dist.ReduceOp.RedOpType, *_: Any, **__: Any) -> _Done:
        # ncclAvg of a floating type multiplies each rank's by 1/N, in the type of the tensor, and sums.
        sent.append(tensor * torch.tensor(1 / world_size, dtype=tensor.dtype) if op == dist.ReduceOp.AVG else tensor)
        return _Done()

    patch.setattr(dist, "all_reduce", all_reduce)
    patch.setattr(dist, "get_world_size", lambda group: world_size)
    sync = make(_Group())  # type: ignore[arg-type]
    prescale = sync.prescale(dtype, torch.device("cuda"))
    torch.manual_seed(0)
    gradients = torch.rand(world_size, 100_000).add_(0.5).to(dtype)
    for gradient in gradients:
        flat = torch.mul(gradient, prescale)
        sync.reduce(Payload(flat, views=[flat], used=flat[:0]))
    total = torch.stack([tensor.double() for tensor in sent]).sum(0)
    return total / gradients.double().mean(0)


@pytest.mark.parametrize("world_size", [2, 6, 8, 12, 24])
@pytest.mark.parametrize(
    ("make", "dtype"),
    [(Bf16, torch.float32), (Bf16, torch.bfloat16), (AllReduce, torch.bfloat16), (AllReduce, torch.float32)],
    ids=str,
)
def test_a_mean_on_nccl_is_neither_too_large_nor_too_small(
    make: type[Sync], dtype: torch.dtype, world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Roundings of single gradients cancel over so many; a factor that is off does not.
    assert float(_mean_of_ranks(make, world_size, dtype, monkeypatch).mean()) == pytest.approx(1, abs=1e-4)
