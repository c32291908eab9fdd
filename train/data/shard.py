"""The samples that each rank reads at each step, computed from integers alone, without torch.

One epoch is one permutation of the samples, a function of (seed, epoch) alone.  Step s takes the s-th stretch
of `batch_size` samples of this permutation; the last stretch may be shorter.  A stretch is cut into micro-batches, and
each of them into a contiguous share for every rank.  So the samples of each micro-batch do not depend on the world
size.  Shares may differ by one sample: gradients are weighted by samples, so the mean over the global batch is exact.
"""

import hashlib
import random


def epoch_order(num_samples: int, seed: int, epoch: int) -> list[int]:
    """The order in which an epoch reads the samples 0 … num_samples-1, the same on every machine and Python version.

    Python promises this only for `random()` of a seeded generator, so the Fisher-Yates shuffle is written out here.
    Seeds 0 and 2**32 - 1 have the same order in epoch 1.
    """
    draw = random.Random((seed << 64) | epoch).random
    order = list(range(num_samples))
    for last in range(num_samples - 1, 0, -1):
        other = int(draw() * (last + 1))
        order[last], order[other] = order[other], order[last]
    return order


def seed_of(*position: int | str) -> int:
    """Return a seed of 32 bits, all that torch's generator on a CPU takes, for the position in the training."""
    return int.from_bytes(hashlib.blake2b(" ".join(map(str, position)).encode(), digest_size=4).digest(), "big")


def num_steps(num_samples: int, batch_size: int) -> int:
    """Optimizer steps of one epoch; the last one may be short."""
    return -(-num_samples // batch_size)


def share(whole: range, rank: int, world_size: int) -> range:
    """The contiguous part of `whole` that belongs to `rank`; sizes differ by at most one, low ranks get more."""
    size, extra = divmod(len(whole), world_size)
    start = rank * size + min(rank, extra)
    return whole[start : start + size + (rank < extra)]
