"""The fast input path gives what torchvision's transforms give, in memory and through a DataLoader."""

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from torchvision import transforms

from tests.train.devices import device_of, devices
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


def test_auto_takes_the_loader_for_datasets_of_others() -> None:
    assert not isinstance(Batches(generated(40, 1), [[0]], CPU, "auto")._raw_batches, DataLoader)
    assert isinstance(Batches(TensorDataset(torch.ones(2, 3)), [[0]], CPU, "auto")._raw_batches, DataLoader)


def test_a_dataset_that_only_resembles_the_projects_is_not_normalised() -> None:
    theirs = TensorDataset(torch.ones(2, 3), torch.arange(2))
    theirs.mean, theirs.std, theirs.num_classes = 0.5, 0.5, 2  # type: ignore[attr-defined]
    [(inputs, _)] = Batches(theirs, [[0, 1]], CPU)
    assert torch.equal(inputs, theirs.tensors[0])
