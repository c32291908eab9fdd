"""Plain DDP that reads each sample once an epoch, killed or not, on any number of processes: see jobs/exact.yaml."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before init_process_group: docs/troubleshooting.md, exit code -6
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from train import ShardSampler, Stop

folder, EPOCHS, SAVE_EVERY = Path(sys.argv[1]), 2, 5
dist.init_process_group("gloo")
torch.manual_seed(1)
x = torch.linspace(-2, 2, 1003)[:, None]
data = TensorDataset(x, x.sin())
sampler = ShardSampler(len(data), batch_size=64, seed=1)
loader = DataLoader(data, batch_sampler=sampler, num_workers=2)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
parts = {"model": model.module, "optimizer": optimizer, "sampler": sampler}
newest, stop = folder / "newest.pt", Stop()
if newest.exists():
    for name, state in torch.load(newest).items():
        parts[name].load_state_dict(state)
print(f"continues at epoch {sampler.epoch}, step {sampler.step}", flush=True)
while sampler.epoch <= EPOCHS:
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        sampler.advance()
        stops = stop()
        if (stops or sampler.step % SAVE_EVERY == 0) and dist.get_rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            torch.save({name: part.state_dict() for name, part in parts.items()}, folder / "new.pt")
            (folder / "new.pt").replace(newest)
        if stops:
            sys.exit(143)
dist.destroy_process_group()
