"""The loop with Accelerate, resumed as its guide on checkpointing and its example say."""

from collections.abc import Iterator

from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.optim import AdamW
from torch.utils.data import DataLoader

from benchmarks.peers.work import Step, Work


def train(work: Work) -> Iterator[Step]:
    accelerator = Accelerator(cpu=True)
    set_seed(1)
    loader = DataLoader(work.dataset, work.batch_size // accelerator.num_processes, shuffle=True)
    optimizer = AdamW(work.model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(work.model, optimizer, loader)
    step = max((int(folder.name[5:]) for folder in work.folder.glob("step_*")), default=0)
    if step:
        accelerator.load_state(work.folder / f"step_{step}")
    first, skipped = divmod(step, len(loader))
    for epoch in range(first, work.epochs):
        batches = accelerator.skip_first_batches(loader, skipped) if epoch == first and skipped else loader
        for batch in batches:
            optimizer.zero_grad()
            accelerator.backward(work.loss(model, batch))
            optimizer.step()
            step += 1
            if step % work.save_every == 0:
                accelerator.save_state(work.folder / f"step_{step}")
            yield epoch, step, batch
