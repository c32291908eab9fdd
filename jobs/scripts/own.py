"""An example of a user's own script: plain PyTorch, nothing from this repository.

render-job torchrun jobs/own-script.yaml --set nodes=1 | bash
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.nn  # before init_process_group: docs/troubleshooting.md, exit code -6
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Fit a plane to random points, different on each rank; all ranks end with the same weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    # The remainder is also right if each process sees only its own GPU, as number 0.
    device = torch.device(f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}" if cuda else "cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Linear(3, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    slope = torch.tensor([[1.0], [-2.0], [0.5]], device=device)
    for step in range(args.steps):
        points = torch.randn(32, 3, device=device)
        loss = nn.functional.mse_loss(model(points), points @ slope)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f} on rank 0 of {world_size}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
