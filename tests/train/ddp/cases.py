"""What CustomDDP has to cope with, each as a model and a way to train it, for one process or several."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from train.cpu.shared_memory import SharedMemory
from train.data.shard import share
from train.sync import MakeSync
from train.sync.all_reduce import AllReduce

CPU = torch.device("cpu")
STEPS = 20
BATCH = 12

# The two ways in which gradients travel on a CPU; a test with `@syncs` runs on each.
IN_MEMORY: MakeSync = partial(AllReduce, share=SharedMemory.of_one_host)
SYNCS: dict[str, MakeSync] = {"shared memory": IN_MEMORY, "network": AllReduce}
syncs = pytest.mark.parametrize("sync", SYNCS)


class Branches(nn.Module):
    """`used` says which of three branches a forward takes; `never` takes part in none."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.branches = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.never = nn.Linear(8, 8)
        self.used: Sequence[int] = (0, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for index in self.used:
            x = x + torch.tanh(self.branches[index](x)) / 4
        return x


class SharedWeights(nn.Module):
    """One layer under two names, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 8)
        self.two = self.one
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.two(torch.tanh(self.one(x))))
        return result


class MixedTypes(nn.Module):
    """Parameters of two types."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Linear(8, 8)
        self.wide = nn.Linear(8, 8).double()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.wide(self.narrow(x).double()).float()
        return result


class Checkpointed(nn.Module):
    """Two segments whose activations are computed anew in backward; `middle` is part of both."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first, self.middle, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        # A reentrant segment is differentiated only if one of its inputs is.
        x = x.detach().requires_grad_()
        x = checkpoint(lambda x: self.middle(torch.tanh(self.first(x))), x, use_reentrant=self.reentrant)
        x = checkpoint(lambda x: self.last(torch.tanh(self.middle(x))), x, use_reentrant=self.reentrant)
        return x


class Nested(nn.Module):
    """Takes a dict and a keyword, returns a dict with a list; its loss uses only some of that."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.idle = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, inputs: dict[str, Tensor], *, offset: Tensor) -> dict[str, Any]:
        x = inputs["x"]
        return {"outputs": [self.one(x) + offset, torch.tanh(self.two(x))], "idle": self.idle(x), "name": "nested"}


class WithNested(nn.Module):
    """Nested outputs made into one: what a training loop does with them, outside of the wrapper."""

    def __init__(self, nested: nn.Module) -> None:
        super().__init__()
        self.nested = nested

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.nested({"x": x}, offset=torch.ones(8, device=x.device))["outputs"]
        result: Tensor = first * second
        return result


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 8))


def channels_last() -> nn.Module:
    layers = nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 4, 2, padding=1), nn.Flatten(), nn.Linear(36, 8))
    return layers.to(memory_format=torch.channels_last)


def large() -> nn.Module:
    """Gradients that move into their bucket at once, beside small ones."""
    return nn.Sequential(nn.Linear(8, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 8))


@dataclass(frozen=True)
class Case:
    """A model and a way to train it.

    halve: with a hook of each parameter, registered after wrapping, that halves its gradient.
    native: options that native DDP needs for it; native_raises: a part of its message if it cannot at all.
    """

    name: str
    build: Callable[[], nn.Module] = plain
    accumulate: int = 1
    set_to_none: bool = True
    scaled_and_clipped: bool = False
    freeze_at: int | None = None
    halve: bool = False
    lr: float = 0.05
    native: dict[str, Any] = field(default_factory=dict, hash=False)
    native_raises: str | None = None


UNUSED = {"find_unused_parameters": True}
CASES = [
    Case("plain"),
    Case("accumulation into kept gradients", accumulate=3, set_to_none=False),
    Case("large gradients", large, lr=0.002),
    Case("large gradients accumulated and kept", large, accumulate=2, set_to_none=False, lr=0.002),
    Case("frozen later", freeze_at=10, native=UNUSED),
    Case("gradients changed by hooks", halve=True),
    Case("large and kept gradients changed by hooks", large, halve=True, set_to_none=False, lr=0.002),
    Case("shared parameters", SharedWeights),
    Case("mixed types", MixedTypes),
    Case("unused parameters and accumulation", Branches, accumulate=2, native=UNUSED),
    Case("channels last", channels_last),
    Case("loss scaling, clipping and accumulation", scaled_and_clipped=True, accumulate=2, set_to_none=False),
    Case("checkpointing", lambda: Checkpointed(reentrant=False)),
    Case(
        "reentrant checkpointing and accumulation",
        lambda: Checkpointed(reentrant=True),
        accumulate=2,
        native_raises="marked as ready twice",
    ),
    Case("several outputs and nested inputs", lambda: WithNested(Nested()), native=UNUSED),
]


def data(step: int) -> tuple[Tensor, Tensor]:
    """The global batch of a step."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, 8, generator=generator), torch.randn(BATCH, 8, generator=generator)


def build(
    case: Case, wrap: Callable[[nn.Module], nn.Module], device: torch.device = CPU
) -> tuple[nn.Module, nn.Module]:
    """The bare model and what is called in its place."""
    model = case.build().to(device)
    if isinstance(model, WithNested):
        bare = model.nested
        model.nested = wrap(bare)
        return bare, model
    return model, wrap(model)


def train(
    case: Case, bare: nn.Module, called: nn.Module, rank: int = 0, world_size: int = 1, device: torch.device = CPU
) -> dict[str, Tensor]:
    """Weights on the CPU after 20 steps of SGD with momentum and weight decay on this rank's share of each batch."""
    optimizer = torch.optim.SGD(bare.parameters(), lr=case.lr, momentum=0.9, weight_decay=0.01)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**10, growth_interval=5, enabled=case.scaled_and_clipped)
    wrapper = called.nested if isinstance(called, WithNested) else called
    if case.halve:
        for param in bare.parameters():
            param.register_post_accumulate_grad_hook(_halve)
    for step in range(STEPS):
        if step == case.freeze_at:
            next(bare.children()).requires_grad_(False)
        inputs, targets = (part.to(device) for part in data(step))
        mine = share(range(BATCH), rank, world_size)
        pieces = [share(mine, piece, case.accumulate) for piece in range(case.accumulate)]
        for number, piece in enumerate(pieces):
            last = number == len(pieces) - 1
            with nullcontext() if last or world_size == 1 else wrapper.no_sync():  # type: ignore[operator]
                rows = slice(piece.start, piece.stop)
                loss = (called(inputs[rows]) - targets[rows]).square().sum() * world_size / BATCH
                scaler.scale(loss).backward()
        if case.scaled_and_clipped:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(bare.parameters(), 0.5, foreach=True)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=case.set_to_none)
    return {name: tensor.detach().cpu().clone() for name, tensor in bare.state_dict().items()}


def _halve(param: Tensor) -> None:
    assert param.grad is not None
    param.grad.mul_(0.5)
