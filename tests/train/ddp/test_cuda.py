"""CustomDDP on CUDA and NCCL: streams, and the same weights as the bare module.  Skipped where there is no device."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.ranks import run_ranks
from train.ddp.wrapper import CustomDDP
from train.sync import Payload, Sync, Waitable, named
from train.world.environment import World

pytestmark = pytest.mark.cuda

_DEVICE = torch.device("cuda", 0)
# Long against a kernel and short against a test: tens of milliseconds.
_CYCLES = 50_000_000


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8)).to(_DEVICE)


class _Doubling(Sync):
    """A slow reduction on a stream of its own: what it finds in the bucket when its turn comes, times two."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group)
        self.stream = torch.cuda.Stream(_DEVICE)

    def reduce(self, payload: Payload) -> Waitable:
        self.stream.wait_stream(torch.cuda.current_stream(_DEVICE))
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(_CYCLES)
            payload.flat.mul_(2)
            done = self.stream.record_event()
        return _Event(done)


class _Event:
    """Waits as NCCL's work does: the current stream waits, the process does not."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def wait(self) -> None:
        self.event.wait(torch.cuda.current_stream(_DEVICE))


def _grads(world: World, own_stream: bool) -> list[Tensor]:
    model = _model()
    wrapped = CustomDDP(model, sync=_Doubling, bucket_mib=0.1)
    stream = torch.cuda.Stream(_DEVICE) if own_stream else torch.cuda.current_stream(_DEVICE)
    stream.wait_stream(torch.cuda.current_stream(_DEVICE))
    with torch.cuda.stream(stream):
        for _ in range(3):
            model.zero_grad()
            wrapped(torch.ones(4, 64, device=_DEVICE)).square().sum().backward()
            # Read at once, on the stream of the training, as an optimizer does.
            read = [param.grad.clone() for param in model.parameters() if param.grad is not None]
    torch.cuda.synchronize()
    return [grad.cpu() for grad in read]


@pytest.mark.parametrize("own_stream", [False, True], ids=["default stream", "own stream"])
def test_no_gradient_is_read_before_its_reduction(own_stream: bool) -> None:
    model = _model()
    model(torch.ones(4, 64, device=_DEVICE)).square().sum().backward()
    [grads] = run_ranks(1, _grads, own_stream)
    for param, grad in zip(model.parameters(), grads, strict=True):
        assert param.grad is not None
        torch.testing.assert_close(grad, 2 * param.grad.cpu())


def _weights(world: World, sync: str, wrapped: bool) -> list[Tensor]:
    group = dist.new_group(backend="nccl")
    assert isinstance(group, dist.ProcessGroup)
    model = _model()
    called = CustomDDP(model, sync=named(sync), process_group=group, bucket_mib=0.5) if wrapped else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(20):
        x = torch.randn(16, 64, generator=torch.Generator().manual_seed(step)).to(_DEVICE)
        called(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [param.detach().cpu() for param in model.parameters()]


@pytest.mark.parametrize(("sync", "tolerance"), [("all_reduce", 1e-6), ("bf16", 1e-2)])
def test_one_process_on_nccl_trains_like_the_bare_module(sync: str, tolerance: float) -> None:
    [expected] = run_ranks(1, partial(_weights, sync=sync, wrapped=False))
    [weights] = run_ranks(1, partial(_weights, sync=sync, wrapped=True))
    torch.testing.assert_close(weights, expected, rtol=tolerance, atol=tolerance)
