"""The fast input path gives what torchvision's transforms give, in memory and through a DataLoader."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.torch_version import TorchVersion
from torch.utils.data import DataLoader
from torchvision import transforms

from tests.train.devices import device_of, devices
from train import datasets
from train.data.batches import Batches
from train.data.sampler import ShardSampler
from train.datasets import Samples

CPU = torch.device("cpu")
PATHS = [("memory", 0), ("loader", 0), ("loader", 2), ("auto", 0)]


@dataclass(frozen=True)
class Generated:
    """Images of any number of channels, and the numbers that they are normalised with."""

    images: Tensor
    labels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    num_classes: int = 10
    varies: ClassVar[bool] = False

    @property
    def shape(self) -> tuple[int, int, int]:
        _, channels, height, width = self.images.shape
        return channels, height, width

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], int(self.labels[index])

    def tensors(self) -> tuple[Tensor, Tensor]:
        return self.images, self.labels

    def sha256(self) -> str:
        return ""


def generated(count: int, channels: int) -> Generated:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, channels, 6, 5), generator=generator, dtype=torch.uint8)
    # Every byte there is, so that each is seen cast.
    images.view(-1)[:256] = torch.arange(256)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return Generated(images, labels, (0.1307, 0.5, 0.9)[:channels], (0.3081, 0.2, 0.01)[:channels])


def with_torchvision(samples: Samples, indices: list[int]) -> Tensor:
    """The images as the published examples make them: one by one, from PIL, ToTensor, Normalize."""
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(samples.mean, samples.std)])
    pictures = [transforms.functional.to_pil_image(samples[index][0]) for index in indices]
    return torch.stack([transform(picture) for picture in pictures])


@pytest.mark.parametrize(("path", "workers"), PATHS)
@pytest.mark.parametrize("channels", [1, 3])
@devices
def test_batches_equal_torchvisions_totensor_and_normalize(device: str, channels: int, path: str, workers: int) -> None:
    samples = generated(40, channels)
    steps = [[3, 1, 39], [0, 2, 4, 5], [7]]
    batches = list(Batches(samples, steps, device_of(device), path, workers))
    assert len(batches) == len(steps)
    for (images, labels), indices in zip(batches, steps, strict=True):
        assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
        assert images.device.type == labels.device.type == device
        torch.testing.assert_close(images.cpu(), with_torchvision(samples, indices), rtol=1e-5, atol=1e-5)
        assert labels.tolist() == [samples[index][1] for index in indices]


@pytest.mark.parametrize(("path", "workers"), PATHS[1:])
@devices
def test_every_path_gives_the_same_bits(device: str, path: str, workers: int) -> None:
    samples = generated(101, 3)
    sampler = ShardSampler(len(samples), 16, rank=1, world_size=3, seed=5)
    for epoch in (1, 2):
        sampler.set_epoch(epoch)
        fast = list(Batches(samples, sampler, device_of(device), "memory"))
        other = list(Batches(samples, sampler, device_of(device), path, workers))
        for (images, labels), (same_images, same_labels) in zip(fast, other, strict=True):
            assert torch.equal(images, same_images)
            assert torch.equal(labels, same_labels)


@pytest.mark.parametrize(("path", "workers"), PATHS)
@devices
def test_a_step_without_indices_is_sample_0_twice(device: str, path: str, workers: int) -> None:
    samples = generated(40, 3)
    first, empty, last = Batches(samples, [[0], [], [2, 3]], device_of(device), path, workers)
    for without, of_sample_0 in zip(empty, first, strict=True):
        assert torch.equal(without, torch.cat([of_sample_0, of_sample_0]))
    assert (len(first[1]), len(last[1])) == (1, 2)


@pytest.mark.parametrize(("path", "workers"), PATHS)
def test_a_rank_without_any_step_gets_no_batch(path: str, workers: int) -> None:
    assert list(Batches(generated(10, 1), [], CPU, path, workers)) == []


@pytest.mark.parametrize(("path", "workers"), PATHS)
def test_batches_follow_the_sampler_from_epoch_to_epoch_and_after_a_resume(path: str, workers: int) -> None:
    count = 60
    # The image of sample i shows i, so that a batch says which samples it holds.
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1)
    samples = Generated(images, torch.arange(count), (0.0,), (1 / 255,))
    sampler = ShardSampler(count, 8, rank=0, world_size=2, seed=1)
    batches = Batches(samples, sampler, CPU, path, workers)
    orders = []
    for epoch in (1, 2):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
        read = [(images.flatten().tolist(), labels.tolist()) for images, labels in batches]
        assert [labels for _, labels in read] == orders[-1]
        assert all(pixels == pytest.approx(labels, abs=1e-4) for pixels, labels in read)
    assert orders[0] != orders[1]
    sampler.load_state_dict(sampler.state_dict() | {"epoch": 1, "step": 3})
    assert [labels.tolist() for _, labels in batches] == orders[0][3:]


@pytest.mark.parametrize(("path", "workers"), PATHS)
@devices
def test_reading_a_batch_leaves_the_samples_as_they_are(device: str, path: str, workers: int) -> None:
    samples = generated(40, 1)
    before = samples.images.clone()
    for images, _ in Batches(samples, [[0, 1], [1, 2]], device_of(device), path, workers):
        images.zero_()
    assert torch.equal(samples.images, before)


def test_auto_takes_the_loader_when_the_samples_do_not_fit() -> None:
    samples = generated(40, 1)
    assert not isinstance(Batches(samples, [[0]], CPU, "auto")._raw_batches, DataLoader)
    crowded = Batches(samples, [[0]], CPU, "auto", local_world_size=2**60)
    assert isinstance(crowded._raw_batches, DataLoader)


@pytest.mark.parametrize(("name", "theirs"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_real_batches_equal_those_of_torchvisions_dataset_in_a_dataloader(
    name: str, theirs: str, data_root: Path
) -> None:
    import torchvision.datasets

    samples = datasets.load(name, str(data_root), "validation", seed=0)
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(samples.mean, samples.std)])
    published = getattr(torchvision.datasets, theirs)(str(data_root), train=False, transform=transform)
    steps = [list(range(start, start + 250)) for start in range(0, 1000, 250)]
    loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(published, batch_sampler=steps)
    for (images, labels), (their_images, their_labels) in zip(Batches(samples, steps, CPU), loader, strict=True):
        torch.testing.assert_close(images, their_images, rtol=1e-5, atol=1e-5)
        assert torch.equal(labels, their_labels)


class _Stream(torch.Stream):
    """Stands for a CUDA stream where there is none: what is done on it is done at once."""

    made = 0

    def __new__(cls, *_: object) -> _Stream:
        cls.made += 1
        return super().__new__(cls, device="cpu")

    def wait_stream(self, stream: torch.Stream) -> None:
        pass


@pytest.mark.skipif(torch.__version__ < TorchVersion("2.7"), reason="fake CUDA tensors of torch 2.6 need a driver")
def test_on_cuda_one_side_stream_serves_all_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    # Fake tensors are on CUDA without a driver, so the code for CUDA itself runs; only streams are stood in for.
    current = _Stream()
    monkeypatch.setattr(torch.cuda, "Stream", _Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: None)
    samples = generated(40, 3)
    with FakeTensorMode(allow_non_fake_inputs=True):
        before = _Stream.made
        # "memory": the samples are copied to the device whole.
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**40, 2**40))
        batches = Batches(samples, [[0, 1], [2]], torch.device("cuda"), "memory")
        for _ in range(3):
            sizes = [(images.device.type, len(labels)) for images, labels in batches]
            assert sizes == [("cuda", 2), ("cuda", 1)]
        assert _Stream.made == before + 1
