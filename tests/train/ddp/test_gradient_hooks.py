"""Every private function of torch that the gradient path calls does what it is called for."""

import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import _JoinConfig
from torch.nn.modules.batchnorm import _BatchNorm

from tests.ranks import run_ranks
from train.ddp.gradient_hooks import (
    GradientNode,
    call_at_end_of_backward,
    current_backward,
    is_compiled_backward,
    will_run,
)
from train.world.environment import World


class _Ready:
    def __init__(self) -> None:
        self.indices: list[int] = []

    def gradient_ready(self, index: int) -> None:
        self.indices.append(index)


def test_the_engine_knows_its_backward_and_calls_back_at_its_end() -> None:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    ready = _Ready()
    nodes = [GradientNode(param, ready, index) for index, param in enumerate((used, unused))]
    seen: list[object] = []

    def hook(_: Tensor) -> None:
        seen.append([will_run(node.node) for node in nodes])
        seen.append(current_backward() >= 0)
        call_at_end_of_backward(lambda: seen.append(list(ready.indices)))

    output = used * 2
    output.register_hook(hook)
    assert current_backward() == -1 and not will_run(nodes[0].node) and not is_compiled_backward()
    output.sum().backward()
    assert seen == [[True, False], True, [0]]


def test_a_hook_keeps_neither_its_callee_alive_nor_calls_after_its_end() -> None:
    param, ready = nn.Parameter(torch.ones(2)), _Ready()
    indices = ready.indices
    node = GradientNode(param, ready, 7)
    param.sum().backward()
    del ready
    gc.collect()
    param.sum().backward()
    assert indices == [7]
    node.remove_hook()


def _names(world: World) -> list[bool]:
    group = dist.group.WORLD
    assert group is not None
    backend = group._get_backend(torch.device("cpu"))
    copied = [torch.zeros(2)]
    torch._foreach_copy_(copied, [torch.ones(2)])
    torch._foreach_mul_(copied, 3.0)
    kept = copied[0].clone()
    torch._foreach_zero_(copied)
    return [
        backend.name() == "gloo",
        backend.options._timeout > timedelta(0),
        isinstance(dist.distributed_c10d._get_default_store(), dist.Store),
        torch.equal(kept, torch.full((2,), 3.0)) and not copied[0].any(),
        not _JoinConfig.construct_disabled_join_config().enable,
        issubclass(nn.BatchNorm2d, _BatchNorm),
    ]


def test_the_private_names_of_groups_and_tensors_are_there() -> None:
    assert all(run_ranks(1, _names)[0])
