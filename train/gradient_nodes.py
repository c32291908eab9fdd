"""The autograd nodes that add to p.grad: each tells when it has, and can be asked whether it will."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

if TYPE_CHECKING:
    from train.ddp import CustomDDP


class GradientNode:
    """Calls `ddp.gradient_ready(index)` whenever a gradient has been added to `param.grad`.

    A hook of the node runs after all hooks of the parameter, whenever those were registered: what they do to p.grad is
    done before it is averaged.  The node is kept, because autograd would make another one, without the hook; it makes
    another one also if the parameter gets another type or device.
    """

    def __init__(self, param: nn.Parameter, ddp: CustomDDP, index: int) -> None:
        self._node = get_gradient_edge(param).node
        self._hook = self._node.register_hook(_call_while_alive(ddp, index, param))

    def will_run(self) -> bool:
        """Whether the backward that is under way will come here; False for what a backward inside of it will do."""
        try:
            return bool(torch._C._will_engine_execute_node(self._node))
        except RuntimeError:
            # There is none, or it is autograd.grad() for this parameter, which leaves p.grad alone.
            return False

    def remove_hook(self) -> None:
        self._hook.remove()


def _call_while_alive(ddp: CustomDDP, index: int, param: nn.Parameter) -> Callable[[Any, Any], None]:
    """A hook that does not keep `ddp` alive: a module may be wrapped again after its wrapper is gone."""
    alive = weakref.ref(ddp)

    def hook(_: Any, gradients: Any) -> None:
        ddp = alive()
        # Autograd comes here also if it adds nothing: an operator has no gradient for it, or it has been frozen.
        if ddp is not None and gradients[0] is not None and param.requires_grad:
            ddp.gradient_ready(index)

    return hook
