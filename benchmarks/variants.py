"""The wrappers that are compared: ours, native DDP in its variants, and the loops of tutorials."""

from collections.abc import Callable
from functools import partial

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from train.cpu.shared_memory import SharedMemory
from train.ddp.wrapper import CustomDDP
from train.strategies.average_after_backward import AverageAfterBackward
from train.strategies.hook_per_parameter import HookPerParameter
from train.sync.all_reduce import AllReduce
from train.sync.bf16 import Bf16

NATIVE = ("native", "native_bucket_view", "native_static_graph")
PLAIN = ("hook_per_parameter", "average_after_backward")


def _native_bf16(model: nn.Module) -> nn.Module:
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return wrapped


VARIANTS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "bare": lambda model: model,
    "ours": partial(CustomDDP, sync=partial(AllReduce, share=SharedMemory.of_one_host)),
    "ours_gloo": CustomDDP,
    "ours_bf16": partial(CustomDDP, sync=Bf16),
    "native": DistributedDataParallel,
    "native_bucket_view": partial(DistributedDataParallel, gradient_as_bucket_view=True),
    "native_static_graph": partial(DistributedDataParallel, static_graph=True),
    "native_bf16": _native_bf16,
    "hook_per_parameter": HookPerParameter,
    "average_after_backward": AverageAfterBackward,
}
