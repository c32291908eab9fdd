"""The loop in plain PyTorch."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.peers.work import Step, Work


def train(work: Work) -> Iterator[Step]:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    sampler: DistributedSampler[object] = DistributedSampler(work.dataset, seed=1)
    loader = DataLoader(work.dataset, work.batch_size // dist.get_world_size(), sampler=sampler)
    model = DistributedDataParallel(work.model)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    step, file = 0, work.folder / "state.pt"
    if file.exists():
        state = torch.load(file)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    first, skipped = divmod(step, len(loader))
    for epoch in range(first, work.epochs):
        sampler.set_epoch(epoch)
        for number, batch in enumerate(loader):
            if epoch == first and number < skipped:
                continue
            optimizer.zero_grad()
            work.loss(model, batch).backward()
            optimizer.step()
            step += 1
            if step % work.save_every == 0 and dist.get_rank() == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, file)
            yield epoch, step, batch
