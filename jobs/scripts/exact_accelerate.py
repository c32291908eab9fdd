"""Accelerate that reads each sample once an epoch, killed or not, on any number of processes: see jobs/exact.yaml."""

import shutil
import sys
from pathlib import Path

import torch
import torch.distributed.nn  # before Accelerator(): docs/troubleshooting.md, exit code -6
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from train import ShardSampler, Stop

folder, EPOCHS, SAVE_EVERY = Path(sys.argv[1]), 2, 5
accelerator = Accelerator(cpu=not torch.cuda.is_available())
torch.manual_seed(1)
x = torch.linspace(-2, 2, 1003)[:, None]
data = TensorDataset(x, x.sin())
sampler = ShardSampler(len(data), batch_size=64, seed=1)
loader = DataLoader(data, batch_sampler=sampler, num_workers=2)  # not through prepare(), which would share it again
model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
accelerator.register_for_checkpointing(sampler)
stop = Stop()
if whole := sorted(folder.glob("epoch-*")):
    accelerator.load_state(str(whole[-1]))
print(f"continues at epoch {sampler.epoch}, step {sampler.step}", flush=True)
while sampler.epoch <= EPOCHS:
    for batch in loader:
        inputs, targets = send_to_device(batch, accelerator.device)
        optimizer.zero_grad()
        accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
        sampler.advance()
        stops = stop()
        if stops or sampler.step % SAVE_EVERY == 0:
            accelerator.save_state(str(folder / "new"))
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                (folder / "new").rename(folder / f"epoch-{sampler.epoch:04}-step-{sampler.step:06}")
                for old in sorted(folder.glob("epoch-*"))[:-1]:
                    shutil.rmtree(old)
            accelerator.wait_for_everyone()
        if stops:
            sys.exit(143)
accelerator.end_training()
