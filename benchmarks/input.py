"""Images per second of our input path against torchvision's MNIST through a DataLoader.

    python -m benchmarks.input --data-root DIR

Each variant reads one shuffled epoch of MNIST on the CPU, as float32 batches of 64 that are normalised and ready for a
model.  The time runs from the request for the first batch to the receipt of the last:

    ours      train.data.batches.Batches over ShardSampler
    peers     torchvision.datasets.MNIST with ToTensor and Normalize through a DataLoader with 0 and with 2 workers

Workers are persistent and each variant has read one epoch before.  So neither the start of workers nor the reading of
the files is timed, but drawing the order of the epoch is.  All variants live in one process and take turns.
Their outputs are compared first: for the same indices, ours and torchvision must give the same images and labels.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from benchmarks.measure import in_turns, machine, make_parser, median_ratio, ratios, write_result
from train.data.batches import Batches
from train.data.sampler import ShardSampler
from train.datasets import Samples
from train.datasets.mnist import load

BATCH_SIZE = 64
PEER_WORKERS = (0, 2)
TARGET = 20.0

# The variants may differ by one rounding to float32, on values up to 2.8.
_TOLERANCE = 1e-6
_NUM_COMPARED = 1000


def main(argv: list[str] | None = None) -> int:
    """Compare, measure and write results/input.json; return 1 if the variants do not give the same values."""
    parser = make_parser("input", __doc__, 5, "epochs that each variant reads")
    parser.add_argument("--data-root", default="data", help="folder of MNIST/raw, which is downloaded if absent")
    options = parser.parse_args(argv)

    # torchrun gives each of several processes one thread, too.
    torch.set_num_threads(1)
    peer_dataset = mnist_of_torchvision(options.data_root)
    samples = load(Path(options.data_root), "train", seed=0)

    difference = largest_difference(samples, peer_dataset)
    print(f"largest difference of a value: {difference:.1e}")
    if difference > _TOLERANCE:
        print(f"more than {_TOLERANCE:.0e}: the variants do not do the same work, nothing was measured")
        return 1

    variants = {"ours": our_variant(samples)} | {
        f"loader_{workers}_workers": peer_variant(peer_dataset, workers) for workers in PEER_WORKERS
    }
    for variant in variants.values():
        variant(0)
    speeds = in_turns(variants, options.rounds)

    peers = {name: values for name, values in speeds.items() if name != "ours"}
    write_result(
        options.results,
        "input",
        {
            "benchmark": "input",
            "what": "images per second, ours / peer; one epoch of MNIST, shuffled, normalised float32 on the CPU",
            "unit": "images per second / peer's",
            "ratio": {name: median_ratio(speeds["ours"], values) for name, values in peers.items()},
            "ratio_at_least": TARGET,
            "ratios": {name: ratios(speeds["ours"], values) for name, values in peers.items()},
            "images_per_second": speeds,
            "largest_difference": difference,
            "settings": {"images": len(samples), "batch_size": BATCH_SIZE, "threads": 1, "rounds": options.rounds},
            "machine": machine(),
        },
    )
    for name, values in peers.items():
        print(f"ours / {name}: {median_ratio(speeds['ours'], values):.1f} (target: at least {TARGET:g})")
    return 0


def mnist_of_torchvision(data_root: str) -> Any:
    """Return the training set as PyTorch's MNIST example reads it."""
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    return datasets.MNIST(data_root, train=True, download=True, transform=transform)


def largest_difference(samples: Samples, peer_dataset: Any) -> float:
    """Return the largest absolute difference of a pixel, over evenly spread samples; infinite if a label differs."""
    indices = list(range(0, len(samples), max(1, len(samples) // _NUM_COMPARED)))
    [(images, labels)] = Batches(samples, [indices], torch.device("cpu"))
    peer_images, peer_labels = zip(*(peer_dataset[index] for index in indices), strict=True)
    if labels.tolist() != list(peer_labels):
        return float("inf")
    return float((images - torch.stack(peer_images)).abs().max())


def our_variant(samples: Samples) -> Callable[[int], float]:
    """Return a function that reads epoch `number` + 1 through our input path and returns images per second."""
    sampler = ShardSampler(len(samples), BATCH_SIZE, rank=0, world_size=1, seed=0)
    batches = Batches(samples, sampler, torch.device("cpu"))

    def read_epoch(number: int) -> float:
        sampler.set_epoch(number + 1)
        return images_per_second(batches)

    return read_epoch


def peer_variant(dataset: Any, workers: int) -> Callable[[int], float]:
    """Return a function that reads `dataset` once through a DataLoader and returns images per second."""
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=BATCH_SIZE, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    return lambda number: images_per_second(loader)


def images_per_second(batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Return the images per second of one pass over `batches`."""
    images_read = 0
    started = time.perf_counter()
    for _, labels in batches:
        images_read += len(labels)
    return images_read / (time.perf_counter() - started)


if __name__ == "__main__":
    raise SystemExit(main())
