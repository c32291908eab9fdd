"""The loop with `train.Run`, as in docs/own-loop.md."""

from collections.abc import Iterator

from torch.optim import AdamW

from benchmarks.peers.work import Step, Work
from train import Run


def train(work: Work) -> Iterator[Step]:
    folders = {"run_dir": work.folder, "checkpoint_dir": work.folder}
    run = Run(seed=1, checkpoint_every=work.save_every, resume="auto", **folders)
    model = run.wrap(work.model)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    run.restore(model=model, optimizer=optimizer)
    for epoch in run.epochs(work.epochs):
        for batch in run.batches(work.dataset, work.batch_size):
            run.step(lambda part: work.loss(model, part), batch, optimizer)
            yield epoch, run.steps_done + 1, batch
