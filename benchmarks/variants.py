"""The wrappers that are compared: ours, native DDP in its variants, and the loops of tutorials."""

from collections.abc import Callable
from functools import partial

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from train.ddp.wrapper import CustomDDP
from train.strategies.average_after_backward import AverageAfterBackward
from train.strategies.hook_per_parameter import HookPerParameter
from train.sync.all_reduce import AllReduce
from train.sync.bf16 import Bf16
from train.sync.powersgd import PowerSGD

NATIVE = ("native", "native_bucket_view", "native_static_graph")
PLAIN = ("hook_per_parameter", "average_after_backward")

# Columns of PowerSGD's factors, and steps before it compresses: native's fewest, in which its buckets settle.
POWERSGD_RANK = 4
POWERSGD_FULL_STEPS = 2


def _native_bf16(model: nn.Module) -> nn.Module:
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return wrapped


def _native_powersgd(model: nn.Module) -> nn.Module:
    # One bucket.  With several, the hook starts the second collective of one and the first of the next in an order that
    # differs between ranks.  gloo then aborts ("Received data size doesn't match expected size") or waits forever.
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=2**10)
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=POWERSGD_RANK, start_powerSGD_iter=POWERSGD_FULL_STEPS
    )
    wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return wrapped


VARIANTS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "bare": lambda model: model,
    "ours": CustomDDP,
    "ours_gloo": partial(CustomDDP, sync=partial(AllReduce, shared_memory=False)),
    "ours_bf16": partial(CustomDDP, sync=Bf16),
    "ours_powersgd": partial(
        CustomDDP, sync=partial(PowerSGD, matrix_rank=POWERSGD_RANK, full_steps=POWERSGD_FULL_STEPS)
    ),
    "native": DistributedDataParallel,
    "native_bucket_view": partial(DistributedDataParallel, gradient_as_bucket_view=True),
    "native_static_graph": partial(DistributedDataParallel, static_graph=True),
    "native_bf16": _native_bf16,
    "native_powersgd": _native_powersgd,
    "hook_per_parameter": HookPerParameter,
    "average_after_backward": AverageAfterBackward,
}
