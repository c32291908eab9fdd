"""Data-parallel training as articles and tutorials publish it: started by torchrun, on the CPU, one epoch.

DistributedSampler, torchvision's dataset with ToTensor and Normalize, a DataLoader with two workers, a hook on each
parameter that averages its gradient over the ranks, `loss.item()` at each step, a pass over the validation set.
Sources: PyTorch's tutorial "Writing Distributed Applications" (all_reduce and division, one call per parameter) and
PyTorch's MNIST example (transforms, loop).

It shares with our code what is not compared: the flags, the model and its initial weights, the format of its record.
Its clock runs as for our `train_seconds`; see benchmarks/epoch.py.
"""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms

from train import models
from train.config import TrainConfig
from train.flags import from_argv
from train.records.metrics import MetricsFile

WORKERS = 2
DATASETS = {
    "mnist": (datasets.MNIST, (0.1307,), (0.3081,)),
    "fashion_mnist": (datasets.FashionMNIST, (0.2860,), (0.3530,)),
}
OPTIMIZERS = {"sgd": optim.SGD, "adadelta": optim.Adadelta}

Loader = DataLoader[tuple[torch.Tensor, torch.Tensor]]


def main(config: TrainConfig) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(config.seed)
    model = models.build(config.model, (1, 28, 28), 10, config.dropout)
    # With the same dropout on both ranks, the model would learn less from as many samples.
    torch.manual_seed(config.seed * dist.get_world_size() + dist.get_rank())
    average_gradients(model)
    optimizer = OPTIMIZERS[config.optimizer](model.parameters(), lr=config.lr)
    train_loader, validation_loader = make_loader(config, train=True), make_loader(config, train=False)

    dist.barrier()
    started = time.perf_counter()
    train_loss = train_epoch(model, optimizer, train_loader, config.max_steps)
    seconds = time.perf_counter() - started

    train_loss, val_loss = mean_over_ranks(train_loss), mean_over_ranks(evaluate(model, validation_loader))
    if dist.get_rank() == 0:
        with MetricsFile(str(config.run_dir)) as metrics:
            metrics.write("epoch", train_loss=train_loss, train_seconds=seconds, val_loss=val_loss)
    dist.destroy_process_group()


def average_gradients(model: nn.Module) -> None:
    """Make backward replace each gradient with its mean over the ranks as soon as it is there."""

    def average(param: torch.Tensor) -> None:
        assert param.grad is not None
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()

    for param in model.parameters():
        dist.broadcast(param.data, src=0)
        param.register_post_accumulate_grad_hook(average)


def make_loader(config: TrainConfig, train: bool) -> Loader:
    """This rank's part of the training or validation set; the batch size is this rank's part of the global one."""
    dataset_class, mean, std = DATASETS[config.dataset]
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean, std)])
    dataset = dataset_class(config.data_root, train=train, transform=transform)
    sampler: DistributedSampler[object] = DistributedSampler(dataset, shuffle=train, seed=config.seed)
    return DataLoader(
        dataset, batch_size=config.batch_size // dist.get_world_size(), sampler=sampler, num_workers=WORKERS
    )


def train_epoch(model: nn.Module, optimizer: optim.Optimizer, loader: Loader, max_steps: int | None) -> float:
    """Train for an epoch; return the mean of this rank's losses over the steps."""
    model.train()
    losses = []
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == max_steps:
            break
    return sum(losses) / len(losses)


@torch.no_grad()
def evaluate(model: nn.Module, loader: Loader) -> float:
    """Return the mean of this rank's losses over the batches."""
    model.eval()
    losses = [F.cross_entropy(model(images), labels).item() for images, labels in loader]
    return sum(losses) / len(losses)


def mean_over_ranks(value: float) -> float:
    tensor = torch.tensor(value)
    dist.all_reduce(tensor)
    return tensor.item() / dist.get_world_size()


if __name__ == "__main__":
    main(from_argv())
