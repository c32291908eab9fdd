"""Lightning that reads each sample once an epoch, killed or not, on any number of processes: see jobs/exact.yaml."""

import os
import sys
from pathlib import Path

import lightning
import torch
import torch.distributed.nn  # before fit(): docs/troubleshooting.md, exit code -6
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from train import ShardSampler, Stop

newest, new = (Path(sys.argv[1], f"{name}.ckpt") for name in ("newest", "new"))
lightning.seed_everything(1)
x = torch.linspace(-2, 2, 1003)[:, None]
data = TensorDataset(x, x.sin())
sampler = ShardSampler(len(data), batch_size=64, seed=1)
loader = DataLoader(data, batch_sampler=sampler, num_workers=2)
loader.state_dict, loader.load_state_dict = sampler.state_dict, sampler.load_state_dict  # into Lightning's checkpoints


class Surface(lightning.LightningModule):
    def training_step(self, batch, number):
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)

    def on_train_start(self):
        self.stop = Stop()  # in place of Lightning's handler, which hangs if ranks get unequal numbers of signals
        print(f"continues at step {self.global_step}", flush=True)

    def on_train_batch_end(self, outputs, batch, number):
        sampler.advance()
        if (stops := self.stop()) or sampler.step % 5 == 0:
            self.trainer.save_checkpoint(new)
            if self.global_rank == 0:
                new.replace(newest)
        if stops:
            sys.exit(143)


settings = {"use_distributed_sampler": False, "enable_checkpointing": False, "logger": False}
ranks, nodes = (int(os.environ.get(name, "1")) for name in ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"))
trainer = lightning.Trainer(max_epochs=2, devices=ranks, num_nodes=nodes, **settings)
model = Surface()
model.net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
trainer.fit(model, loader, ckpt_path=str(newest) if newest.exists() else None)
