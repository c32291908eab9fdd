"""Two models and two optimizers that take turns: a generator learns the points of a ring from a critic.

torchrun --nproc-per-node 2 -m jobs.scripts.gan --folder runs/gan
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus
from torch.utils.data import TensorDataset

from train import Run


def layers(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, outputs))


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--folder", default="runs/gan", help="of records and checkpoints")
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()

run = Run(seed=1, run_dir=args.folder, checkpoint_dir=args.folder, checkpoint_every=5, resume="auto", log_every=10)
generator, critic = run.wrap(layers(4, 2)), run.wrap(layers(2, 1))
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
run.restore(generator=generator, critic=critic, of_generator=of_generator, of_critic=of_critic)

# The noise belongs to the samples, so each sample meets the same noise on any number of processes.
draws = torch.Generator().manual_seed(0)
angles = 2 * torch.pi * torch.rand(1003, generator=draws)
ring = TensorDataset(torch.stack([angles.cos(), angles.sin()], dim=1), torch.randn(1003, 4, generator=draws))


def critic_loss(batch: list[Tensor]) -> Tensor:
    real, noise = batch
    scores = torch.cat([critic(real), critic(generator(noise).detach())])
    is_real = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)]).to(scores)
    return binary_cross_entropy_with_logits(scores, is_real)


for _ in run.epochs(args.epochs):
    for batch in run.batches(ring, batch_size=77):
        run.step(critic_loss, batch, of_critic)
        # By hand, as in plain PyTorch: backward leaves gradients in the critic, too.
        fooled = softplus(-critic(generator(batch[1]))).mean()
        run.backward(fooled)
        run.apply(of_generator)
        of_critic.zero_grad()
        run.record(generator_loss=fooled)
