"""The loop with Lightning Fabric, whose guide on checkpoints leaves the place in the epoch to the loop."""

import os
from collections.abc import Iterator

from lightning.fabric import Fabric
from torch.optim import AdamW
from torch.utils.data import DataLoader

from benchmarks.peers.work import Step, Work


def train(work: Work) -> Iterator[Step]:
    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]))
    fabric.launch()
    fabric.seed_everything(1)
    loader = DataLoader(work.dataset, work.batch_size // fabric.world_size, shuffle=True)
    loader = fabric.setup_dataloaders(loader)
    optimizer = AdamW(work.model.parameters(), lr=1e-3)
    model, optimizer = fabric.setup(work.model, optimizer)
    state, file = {"model": model, "optimizer": optimizer, "step": 0}, work.folder / "state.ckpt"
    if file.exists():
        fabric.load(file, state)
    first, skipped = divmod(state["step"], len(loader))
    for epoch in range(first, work.epochs):
        for number, batch in enumerate(loader):
            if epoch == first and number < skipped:
                continue
            optimizer.zero_grad()
            fabric.backward(work.loss(model, batch))
            optimizer.step()
            state["step"] += 1
            if state["step"] % work.save_every == 0:
                fabric.save(file, state)
            yield epoch, state["step"], batch
