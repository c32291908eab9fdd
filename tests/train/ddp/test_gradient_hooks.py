"""Every private function of torch that the gradient path calls does what it is called for."""

import torch
from torch import Tensor, nn

from train.ddp.gradient_hooks import (
    call_at_end_of_backward,
    current_backward,
    hooked_node,
    is_compiled_backward,
    will_run,
)


class _Ready:
    def __init__(self) -> None:
        self.indices: list[int] = []

    def gradient_ready(self, index: int) -> None:
        self.indices.append(index)


def test_the_engine_knows_its_backward_and_calls_back_at_its_end() -> None:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    ready = _Ready()
    nodes = [hooked_node(param, ready, index) for index, param in enumerate((used, unused))]
    seen: list[object] = []

    def hook(_: Tensor) -> None:
        seen.append([will_run(node) for node in nodes])
        seen.append(current_backward() >= 0)
        call_at_end_of_backward(lambda: seen.append(list(ready.indices)))

    output = used * 2
    output.register_hook(hook)
    assert current_backward() == -1 and not will_run(nodes[0]) and not is_compiled_backward()
    output.sum().backward()
    assert seen == [[True, False], True, [0]]
