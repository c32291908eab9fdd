"""The fast input path gives what torchvision's transforms give, in memory and through a DataLoader."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.torch_version import TorchVersion
from torch.utils.data import DataLoader, TensorDataset
from torchvision import transforms

from tests.train.devices import device_of, devices
from train import datasets
from train.data.batches import Batches
from train.data.sampler import ShardSampler
from train.datasets import Samples
from train.datasets._torchvision import TensorSamples

CPU = torch.device("cpu")
PATHS = [("loader", 0), ("loader", 2), ("auto", 0)]  # besides memory


def generated(count: int, channels: int) -> TensorSamples:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, channels, 6, 5), generator=generator, dtype=torch.uint8)
    # Every byte there is, so that each is seen cast.
    images.view(-1)[:256] = torch.arange(256)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return TensorSamples(images, labels, (0.1307, 0.5, 0.9)[:channels], (0.3081, 0.2, 0.01)[:channels])


def with_torchvision(samples: Samples, indices: list[int]) -> Tensor:
    """The images as the published examples make them: one by one, from PIL, ToTensor, Normalize."""
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(samples.mean, samples.std)])
    pictures = [transforms.functional.to_pil_image(samples[index][0]) for index in indices]
    return torch.stack([transform(picture) for picture in pictures])


@pytest.mark.parametrize("channels", [1, 3])
@devices
def test_batches_equal_torchvisions_totensor_and_normalize(device: str, channels: int) -> None:
    samples = generated(40, channels)
    steps = [[3, 1, 39], [0, 2, 4, 5], [7]]
    batches = list(Batches(samples, steps, device_of(device), "memory"))
    assert len(batches) == len(steps)
    for (images, labels), indices in zip(batches, steps, strict=True):
        assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
        assert images.device.type == labels.device.type == device
        torch.testing.assert_close(images.cpu(), with_torchvision(samples, indices), rtol=1e-5, atol=1e-5)
        assert labels.tolist() == [samples[index][1] for index in indices]


@pytest.mark.filterwarnings("error:.*pin_memory")  # without a GPU it helps nothing
@pytest.mark.parametrize(("path", "workers"), PATHS)
@devices
def test_every_path_gives_the_same_bits_from_epoch_to_epoch_and_after_a_resume(
    device: str, path: str, workers: int
) -> None:
    samples = generated(101, 3)
    sampler = ShardSampler(len(samples), 16, rank=1, world_size=3, seed=5)
    fast = Batches(samples, sampler, device_of(device), "memory")
    other = Batches(samples, sampler, device_of(device), path, workers)
    orders = []
    for position in ({"epoch": 1}, {"epoch": 2}, {"epoch": 1, "step": 3}):
        sampler.load_state_dict(sampler.state_dict() | {"step": 0} | position)
        read = list(zip(fast, other, strict=True))
        for (images, labels), (same_images, same_labels) in read:
            assert (same_images.dtype, same_images.device.type) == (torch.float32, device)
            assert torch.equal(images, same_images) and torch.equal(labels, same_labels)
        orders.append([labels.tolist() for (_, labels), _ in read])
        assert orders[-1] == [[samples[index][1] for index in step] for step in sampler]
    assert orders[0] != orders[1] and orders[2] == orders[0][3:]


@pytest.mark.parametrize("path", ["memory", "loader"])
@devices
def test_a_step_without_indices_is_sample_0_twice_and_reading_leaves_the_samples_as_they_are(
    device: str, path: str
) -> None:
    samples = generated(40, 3)
    before = samples.images.clone()
    first, empty, last = Batches(samples, [[0], [], [2, 3]], device_of(device), path)
    for without, of_sample_0 in zip(empty, first, strict=True):
        assert torch.equal(without, torch.cat([of_sample_0, of_sample_0]))
    assert (len(first[1]), len(last[1])) == (1, 2)
    for images, _ in (first, empty, last):
        images.zero_()
    assert torch.equal(samples.images, before)
    assert list(Batches(samples, [], CPU, path)) == [], "a rank without any step gets no batch"


def test_auto_takes_the_loader_when_the_samples_do_not_fit() -> None:
    samples = generated(40, 1)
    assert not isinstance(Batches(samples, [[0]], CPU, "auto")._raw_batches, DataLoader)
    crowded = Batches(samples, [[0]], CPU, "auto", local_world_size=2**60)
    assert isinstance(crowded._raw_batches, DataLoader)


def test_a_dataset_that_only_resembles_the_projects_is_not_normalised() -> None:
    theirs = TensorDataset(torch.ones(2, 3), torch.arange(2))
    theirs.mean, theirs.std, theirs.num_classes = 0.5, 0.5, 2  # type: ignore[attr-defined]
    [(inputs, _)] = Batches(theirs, [[0, 1]], CPU)
    assert torch.equal(inputs, theirs.tensors[0])


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

    def __new__(cls, *_: object) -> "_Stream":
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
