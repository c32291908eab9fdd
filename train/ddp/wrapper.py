"""CustomDDP: data-parallel training with gradients that live in buckets and are averaged during backward.

What happens in a backward, with a picture: docs/train.md.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from train.collectives.broadcast import broadcast_from_rank_0
from train.collectives.missing_ranks import naming_missing_ranks
from train.ddp.reducer import Reducer
from train.ddp.refusals import refuse_changes, refuse_different_modules
from train.errors import UserError
from train.sync import MakeSync
from train.sync.all_reduce import AllReduce

_MIB = 2**20


class CustomDDP(nn.Module):
    """Keep one copy of `module` per rank equal by averaging gradients, bucket by bucket.

    At construction rank 0's parameters and buffers are sent to all ranks.  In backward each gradient moves into its
    place in a flat bucket, and that place becomes `p.grad`.  A bucket whose last gradient has arrived is averaged over
    the ranks while backward continues.  When backward returns, p.grad holds the averages, so
    `loss.backward(); optimizer.step()` needs no extra call.

    Args:
        module: already on its device; all ranks have the same parameters in the same order.
        sync: what to do with a full bucket: a class of train/sync/, or a partial() of it with its options.
        bucket_mib: bucket capacity in MiB (2**20 bytes); first_bucket_mib: capacity of the first one.
        broadcast_buffers: send rank 0's buffers at every forward in training mode.  Not needed if something
            else keeps them equal (SyncBatchNorm).
        process_group: the ranks to average over; None is the default group.
    After backward, p.grad has p.shape and p.dtype and is the mean over the ranks.  If only some ranks used a parameter,
    its gradient counts as zero on the others.  If no rank used it, p.grad does not change (usually None).
    Backward passes inside `no_sync()` leave in p.grad this rank's own running sum, not yet averaged.
    State dicts have the keys of `module`, so a checkpoint loads into the bare module and into any strategy; a state of
    native DDP loads, too.
    The readable versions, about 30 lines each: train/strategies/hook_per_parameter.py and average_after_backward.py.
    Making a CustomDDP is a collective.
    Raises SharedError if parameters or buffers differ between ranks, and names the first.  Raises UserError if a
    collective does not complete, and names the bucket, its parameters and the missing ranks.
    Source: Li et al., PyTorch Distributed, VLDB 2020 (arXiv:2006.15704); PyTorch note "DDP".

    >>> ddp = CustomDDP(torch.nn.Linear(3, 1))  # after torch.distributed.init_process_group()
    >>> ddp(torch.ones(2, 3)).sum().backward()
    >>> ddp.module.weight.grad  # the mean over all ranks
    tensor([[2., 2., 2.]])
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        sync: MakeSync = AllReduce,
        bucket_mib: float = 25.0,
        first_bucket_mib: float = 1.0,
        broadcast_buffers: bool = True,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        group = process_group or dist.group.WORLD
        if group is None:
            raise UserError("CustomDDP needs a process group: call torch.distributed.init_process_group() first")
        self.module, self.group, self.training = module, group, module.training
        self._options: dict[str, Any] = dict(
            sync=sync, bucket_mib=bucket_mib, first_bucket_mib=first_bucket_mib, broadcast_buffers=broadcast_buffers
        )
        self.register_load_state_dict_pre_hook(_load_into_module)  # type: ignore[no-untyped-call]
        named = list(module.named_parameters())
        trained = {name: param for name, param in named if param.requires_grad}
        self._parts = [*module.modules()]
        self._as_wrapped = [(name, param, param.requires_grad, param.dtype, param.device) for name, param in named]
        refuse_different_modules(module, self._options, group)
        broadcast_from_rank_0([*module.parameters(), *module.buffers()], group)
        self.reducer = Reducer(trained, sync(group), bucket_mib * _MIB, first_bucket_mib * _MIB)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.reducer.forward_begins()
        if torch.is_grad_enabled():
            refuse_changes(self._as_wrapped)
        averages = self.reducer.averages
        if averages:
            self._send_buffers()
        output = self.module(*args, **kwargs)
        if torch.is_grad_enabled() and averages and not torch.compiler.is_compiling():
            for tensor in [output] if isinstance(output, Tensor) else tree_leaves(output):
                if isinstance(tensor, Tensor) and tensor.grad_fn is not None:
                    tensor.register_hook(self.reducer.backward_begins)
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backward passes inside only add to p.grad; the first one outside averages the sum."""
        before, self.reducer.averages = self.reducer.averages, False
        try:
            yield
        finally:
            self.reducer.averages = before

    def _send_buffers(self) -> None:
        # The mode of the module, which may differ from the wrapper's.
        if self._options["broadcast_buffers"] and self.module.training and any(part._buffers for part in self._parts):
            position = f"forward after backward {self.reducer.num_backwards}"
            with naming_missing_ranks("sending rank 0's buffers failed", position, self.group):
                broadcast_from_rank_0([*self.module.buffers()], self.group)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        """Copy the bare module, as averages of its weights need it: a copy averages no gradients."""
        return deepcopy(self.module, memo)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)


def _load_into_module(ddp: CustomDDP, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *_: object) -> None:
    """Give a state the keys that torch looks for, unless it has them already, being one of native DDP."""
    if metadata.get("assign_to_params_buffers", False):
        raise UserError("load_state_dict(assign=True) replaces parameters: call it before CustomDDP is made")
    bare = {key.removeprefix(prefix) for key in state if key.startswith(prefix)}
    if bare <= ddp.module.state_dict().keys() or not all(key.startswith("module.") for key in bare):
        for key in bare:
            state[f"{prefix}module.{key}"] = state.pop(prefix + key)
