"""`train.check` finds what makes a loop on several processes another training than on one."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import environment

_LOOP = """
import sys
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from train import ShardSampler, SyncBatchNorm, check
fault = sys.argv[1]
def loop():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    x = torch.linspace(-2, 2, 1024)[:, None]
    data = TensorDataset(x, x.sin())
    model = nn.Sequential(nn.Linear(1, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    if fault != "local BatchNorm":
        model = SyncBatchNorm.convert_sync_batchnorm(model)
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(data, seed=rank * (fault == "seed of a rank"))
    for epoch in range(2):
        if fault != "no set_epoch":
            sampler.set_epoch(epoch)
        for inputs, targets in DataLoader(data, 256 // world, sampler=sampler):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss((model if fault == "not averaged" else wrapped)(inputs), targets)
            (loss * world if fault == "loss scale" else loss).backward()
            optimizer.step()
check(loop)
"""


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("none", "5 steps on 1 and on 2 processes have the same inputs, buffers and gradients"),
        ("loss scale", "rank 0 of 1 and rank 0 of 2 first differ in step 1: the gradient of 0.weight has norm "),
        ("not averaged", "rank 0 of 2 and rank 1 of 2 first differ in step 1: the gradient of 0.weight has norm "),
        ("local BatchNorm", "rank 0 of 2 and rank 1 of 2 first differ in step 1: the buffer 1.running_mean has norm "),
        ("seed of a rank", "rank 0 of 1 and rank 0 of 2 first differ in step 1: the sum of all inputs has norm "),
        ("no set_epoch", "a DistributedSampler shuffles without set_epoch(epoch): each epoch has the same order"),
    ],
)
def test_the_first_tensor_that_differs_is_named(fault: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(_LOOP)
    command = [sys.executable, "loop.py", fault]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert says in ended.stdout + ended.stderr and (ended.returncode == 0) == (fault == "none"), ended
    assert "Traceback" not in ended.stderr, ended
