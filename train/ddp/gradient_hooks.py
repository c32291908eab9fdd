"""Access of CustomDDP to autograd's engine: the only file that calls the engine's private functions.

torch itself relies on each of them elsewhere.
"""

import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

# A larger gradient moves into its bucket as soon as it arrives, so that two copies of it never live for long.
# Smaller ones wait for each other: one call for many costs a fraction of many calls.
MOVED_AT_ONCE_BYTES = 2**18


def current_backward() -> int:
    """Return the number of the backward that runs on this thread; -1 outside of one.  As in torch/autograd/graph.py."""
    return torch._C._current_graph_task_id()


def will_run(node: Node) -> bool:
    """Return True if the running backward, not one nested in it, reaches the node.  As in torch/autograd/graph.py."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:
        # No backward runs, or it is autograd.grad() for this very parameter, which leaves p.grad alone.
        return False


def call_at_end_of_backward(callback: Callable[[], None]) -> None:
    """Have the running backward call `callback` before it returns.  As in torch/distributed/fsdp/_runtime_utils.py."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def num_holders(flat: Tensor, views: Sequence[Tensor]) -> list[int]:
    """Return how many tensors use the memory of `flat`; then how many hold each view in Python, then in C++.

    As in torch/_inductor/cudagraph_trees.py and torch/multiprocessing/reductions.py.
    """
    storage = flat.untyped_storage()._cdata
    return [torch._C._storage_Use_Count(storage), *map(sys.getrefcount, views), *map(Tensor._use_count, views)]


def is_compiled_backward() -> bool:
    """Return True under compiled autograd, which skips end-of-backward callbacks.  As in torch/_dynamo/utils.py."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    return compiled is not None and bool(compiled.in_compiled_autograd_region)


class Arrivals(deque[int]):
    """Indices of parameters that autograd has reached, until their receiver counts them: when there are `due`."""

    due = 0


def hooked_node(param: nn.Parameter, receiver: Any, arrivals: Arrivals, index: int) -> Node:
    """Return the autograd node that adds to `param.grad`; when it has run, `arrivals` gets `index`.

    It calls `receiver.gradients_ready()` once for many, because Python that backward has pushed out of the caches is
    slow.  A hook of the node runs after all hooks of the parameter, whenever those were registered.  So their changes
    to p.grad are done before it is averaged.  Keep the node: autograd would otherwise make a new one without the hook.
    receiver: is not kept alive: a module may be wrapped again after its wrapper is gone.
    """
    alive, at_once = weakref.ref(receiver), param.nbytes > MOVED_AT_ONCE_BYTES

    def call(*_: Any) -> None:
        # Autograd also calls this if an operator has no gradient for the parameter.  That is an arrival, too:
        # otherwise this rank would start the bucket later than the others, and meet them in the wrong collective.
        arrivals.append(index)
        if at_once or len(arrivals) >= arrivals.due:
            if (found := alive()) is not None:
                found.gradients_ready()
            else:
                arrivals.clear()

    node = get_gradient_edge(param).node
    node.register_hook(call)
    return node
