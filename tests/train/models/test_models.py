"""Every model in train/models/: takes each shape, answers one number a class, learns in every parameter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from train import models
from train.errors import UserError

MODELS = sorted(file.stem for file in Path(models.__file__).parent.glob("*.py") if file.stem != "__init__")
SHAPES = [(1, 28, 28), (3, 32, 32)]


def numbers(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def images(count: int, shape: tuple[int, int, int]) -> torch.Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("classes", [2, 10, 100])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_model_gives_one_number_a_class_for_each_image(name: str, shape: tuple[int, int, int], classes: int) -> None:
    model = models.build(name, shape, classes, None).eval()
    with torch.no_grad():
        assert model(images(3, shape)).shape == (3, classes)
        assert model(images(1, shape)).shape == (1, classes)
        assert model(images(0, shape)).shape == (0, classes), "a rank without samples still evaluates"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_gets_a_gradient(name: str, shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    model = models.build(name, shape, 10, 0.0).train()
    nn.functional.cross_entropy(model(images(8, shape)), torch.arange(8)).backward()
    assert [key for key, value in model.named_parameters() if value.grad is None] == []
    # BatchNorm takes the mean away, and with it the effect of a bias before it.
    weights = {key: value.grad for key, value in model.named_parameters() if not key.endswith("bias")}
    assert [key for key, grad in weights.items() if grad is not None and not grad.any()] == []


@pytest.mark.parametrize("name", MODELS)
def test_dropout_0_turns_every_dropout_off(name: str) -> None:
    model = models.build(name, (1, 28, 28), 10, 0.0).train()
    batch = images(8, (1, 28, 28))
    with torch.no_grad():
        assert torch.equal(model(batch), model(batch))


@pytest.mark.parametrize("name", MODELS)
def test_dropout_rate_reaches_every_dropout_or_is_refused(name: str) -> None:
    try:
        model = models.build(name, (1, 28, 28), 10, 0.3).train()
    except UserError as error:
        assert "--dropout" in str(error)
        assert name in str(error)
        return
    rates = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    assert rates == [0.3] * len(rates) != []
    batch = images(8, (1, 28, 28))
    with torch.no_grad():
        assert not torch.equal(model(batch), model(batch))


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_decides_the_weights(name: str) -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        model = models.build(name, (1, 28, 28), 10, None)
        return torch.cat([param.detach().flatten() for param in model.parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_mnist_cnn_has_the_1199882_parameters_of_pytorchs_example() -> None:
    model = models.build("mnist_cnn", (1, 28, 28), 10, None)
    assert numbers(model) == 1_199_882
    assert [(m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear)] == [
        (9216, 128),
        (128, 10),
    ]
    assert [m.p for m in model.modules() if isinstance(m, nn.Dropout)] == [0.25, 0.5]


def test_mnist_bn_has_batchnorm_after_each_convolution_and_1600_features() -> None:
    model = models.build("mnist_bn", (1, 28, 28), 10, None)
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear | nn.BatchNorm1d | nn.BatchNorm2d)]
    assert [type(layer) for layer in layers] == [
        nn.Conv2d,
        nn.BatchNorm2d,
        nn.Conv2d,
        nn.BatchNorm2d,
        nn.Linear,
        nn.BatchNorm1d,
        nn.Linear,
    ]
    assert [(m.in_features, m.out_features) for m in layers if isinstance(m, nn.Linear)] == [(1600, 128), (128, 10)]


def test_resnet18_differs_from_torchvisions_only_in_channels_and_classes() -> None:
    from torchvision.models import resnet18

    theirs = resnet18()
    assert numbers(models.build("resnet18", (3, 224, 224), 1000, None)) == numbers(theirs)
    grey = models.build("resnet18", (1, 28, 28), 10, None)
    assert numbers(grey) == numbers(theirs) - 2 * 64 * 7 * 7 - (1000 - 10) * 513
    assert list(grey.state_dict()) == list(theirs.state_dict())
    wanted = (2 / (64 * 7 * 7)) ** 0.5  # He et al., fan out, as torchvision initialises it
    assert grey.get_submodule("conv1").get_parameter("weight").std().item() == pytest.approx(wanted, rel=0.05)
