"""The copy of a model's buffers that undoes a step."""

import pytest
import torch
from torch import Tensor, nn

from tests.train.devices import device_of, devices
from train.loop.step import BufferCopies


@devices
def test_buffers_come_back_and_each_copy_is_of_tensors_of_one_type(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The counters of BatchNorm are int64.  A list of several types is copied by a kernel for each tensor.
    model = nn.Sequential(*(nn.BatchNorm1d(8) for _ in range(20))).to(device_of(device))
    copies, lists = BufferCopies([model]), []
    real = torch._foreach_copy_

    def noted(targets: list[Tensor], sources: list[Tensor]) -> None:
        lists.append({tensor.dtype for tensor in (*targets, *sources)})
        real(targets, sources)

    monkeypatch.setattr(torch, "_foreach_copy_", noted)
    copies.keep()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model(torch.randn(4, 8, device=device_of(device)))
    copies.restore()
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert sorted(map(str, lists)) == 2 * ["{torch.float32}"] + 2 * ["{torch.int64}"]
