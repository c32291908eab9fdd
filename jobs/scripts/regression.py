"""Your own model, dataset and loss in your own loop: the same losses on any number of processes.

torchrun --nproc-per-node 2 -m jobs.scripts.regression --folder runs/regression
"""

import argparse
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from train import Run


class Points(NamedTuple):
    """Points of a surface: x (n, 2) and y (n, 1)."""

    x: Tensor
    y: Tensor


class Surface(Dataset[Points]):
    """y = sin(x₀) · x₁ with noise, at random x."""

    def __init__(self, num: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.rand(num, 2, generator=generator) * 4 - 2
        self.y = self.x[:, :1].sin() * self.x[:, 1:] + 0.01 * torch.randn(num, 1, generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Points:
        return Points(self.x[index], self.y[index])


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--folder", default="runs/regression", help="of records and checkpoints")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--logical-world", type=int, help="the same bits on this many processes and on fewer")
args = parser.parse_args()

folders = {"run_dir": args.folder, "checkpoint_dir": args.folder}
run = Run(seed=1, checkpoint_every=5, resume="auto", log_every=10, logical_world=args.logical_world, **folders)
model = run.wrap(nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
run.restore(model=model, optimizer=optimizer)


def loss(batch: Points) -> Tensor:
    return nn.functional.mse_loss(model(batch.x), batch.y)


data, validation = Surface(1003, seed=0), Surface(200, seed=1)
for _ in run.epochs(args.epochs):
    for batch in run.batches(data, batch_size=77):
        run.step(loss, batch, optimizer, clip_norm=1.0)
    run.record(**run.evaluate(lambda batch: {"val_loss": loss(batch)}, validation, batch_size=64))
