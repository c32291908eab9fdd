"""Our CustomDDP: see train/ddp.py."""

from __future__ import annotations

from torch import nn

from train import sync
from train.ddp import CustomDDP
from train.strategies import Setting


def wrap(model: nn.Module, setting: Setting) -> nn.Module:
    """CustomDDP around the model; alone there is nobody to average with, and the model stays bare."""
    if setting.world_size == 1:
        return model
    return CustomDDP(
        model,
        sync=sync.named(setting.sync),
        bucket_mib=setting.bucket_mib,
        broadcast_buffers=setting.buffers_differ,
        process_group=setting.group,
    )
