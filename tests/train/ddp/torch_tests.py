"""Runs torch's own tests of native DDP with CustomDDP in its place: on gloo, on the CPU, without a GPU.

The tests are methods of torch.testing._internal.distributed.distributed_test.  That module reads its environment when
it is imported, so only ranks import it.  The tests name devices by the rank; here every device is the CPU.
"""

import inspect
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from train.collectives.sync_batchnorm import SyncBatchNorm
from train.ddp.wrapper import CustomDDP
from train.errors import UserError
from train.world.environment import World


def run_torch_tests(world: World, names: Sequence[str]) -> list[str]:
    """Run these tests one after the other; return those that the installed torch does not have."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as patches:
        os.environ.update(BACKEND="gloo", WORLD_SIZE=str(world.world_size), TEMP_DIR=folder)
        from torch.testing._internal.common_utils import TestCase
        from torch.testing._internal.distributed import distributed_test

        class Tests(distributed_test.DistributedTest._DistTestBase, TestCase):
            rank = world.rank

            def _barrier(self, *_: object, **__: object) -> None:
                dist.barrier()

        for owner, name, replacement in (
            (torch.nn.parallel, "DistributedDataParallel", _custom_ddp),
            (distributed_test, "DistributedDataParallel", _custom_ddp),
            # torch's own has no CPU kernel.
            (nn.SyncBatchNorm, "convert_sync_batchnorm", _convert_sync_batchnorm),
            (nn.Module, "cuda", lambda module, device=None: module),
            (torch.cuda, "set_device", lambda device: None),
            (torch.cuda, "current_device", lambda: "cpu"),
            (torch.cuda, "synchronize", lambda device=None: None),
        ):
            patches.enter_context(mock.patch.object(owner, name, replacement))
        patches.enter_context(_EveryDeviceIsTheCpu())
        present = [name for name in names if hasattr(Tests, name)]
        for name in present:
            # Models and data of the ranks agree only if their generators do; some tests seed them by the rank.
            torch.manual_seed(0)
            # Without the decorators that skip a test on a machine that has no GPU for each rank.
            inspect.unwrap(getattr(Tests, name))(Tests(name))  # type: ignore[no-untyped-call]
        return [name for name in names if name not in present]


def _custom_ddp(
    module: nn.Module,
    device_ids: Sequence[int] | None = None,
    output_device: int | None = None,
    broadcast_buffers: bool = True,
    process_group: dist.ProcessGroup | None = None,
    bucket_cap_mb: float = 25.0,
    find_unused_parameters: bool = False,
    gradient_as_bucket_view: bool = False,
    static_graph: bool = False,
) -> CustomDDP:
    """CustomDDP for the arguments of native DDP.  It needs no hints about the graph, and finds the device itself."""
    try:
        return CustomDDP(
            module, bucket_mib=bucket_cap_mb, broadcast_buffers=broadcast_buffers, process_group=process_group
        )
    except UserError as error:
        raise RuntimeError(str(error)) from error  # the type of native DDP's refusals


def _convert_sync_batchnorm(module: nn.Module, process_group: dist.ProcessGroup | None = None) -> nn.Module:
    return SyncBatchNorm.convert_sync_batchnorm(module, process_group)


class _EveryDeviceIsTheCpu(TorchFunctionMode):
    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function is Tensor.cuda:
            return args[0]
        if function is Tensor.to and args[1:] and isinstance(args[1], int | torch.device):
            args = (args[0], "cpu", *args[2:])
        if kwargs.get("device") is not None:
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)
