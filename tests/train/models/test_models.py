"""Every model in train/models/: takes each shape, answers one number a class, learns in every parameter."""

from pathlib import Path

import pytest
import torch
from torch import nn

from train import models
from train.errors import UserError

MODELS = sorted(file.stem for file in Path(models.__file__).parent.glob("*.py") if file.stem != "__init__")
IMAGES: list[tuple[int, ...]] = [(1, 28, 28), (3, 32, 32)]
ROWS: list[tuple[int, ...]] = [(24,), (7,)]
SHAPES = {name: ROWS if name == "gpt" else IMAGES for name in MODELS}
CASES = [(name, shape) for name in MODELS for shape in SHAPES[name]]
# A model's parameters do not depend on the shape where this one is taken.
ONE_SHAPE = [(name, SHAPES[name][0]) for name in MODELS]


def numbers(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def inputs(count: int, shape: tuple[int, ...], classes: int = 10) -> torch.Tensor:
    """Images, or rows of tokens if the shape is that of a row."""
    generator = torch.Generator().manual_seed(0)
    if len(shape) == 1:
        return torch.randint(classes, (count, *shape), generator=generator)
    return torch.randn(count, *shape, generator=generator)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_model_gives_one_number_a_class_for_each_image_or_token(name: str, shape: tuple[int, ...]) -> None:
    classes = 100 if shape == SHAPES[name][0] else 2
    model = models.build(name, shape, classes, None).eval()
    answered = (*shape, classes) if len(shape) == 1 else (classes,)
    with torch.no_grad():
        for count in (3, 1, 0):  # a rank without samples still evaluates
            assert model(inputs(count, shape, classes)).shape == (count, *answered)


@pytest.mark.parametrize(("name", "shape"), ONE_SHAPE)
def test_every_parameter_gets_a_gradient(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = models.build(name, shape, 10, 0.0).train()
    logits = model(inputs(8, shape)).flatten(0, -2)
    nn.functional.cross_entropy(logits, torch.arange(len(logits)) % 10).backward()
    assert [key for key, value in model.named_parameters() if value.grad is None] == []
    # BatchNorm takes the mean away, and with it the effect of a bias before it.
    weights = {key: value.grad for key, value in model.named_parameters() if not key.endswith("bias")}
    assert [key for key, grad in weights.items() if grad is not None and not grad.any()] == []


@pytest.mark.parametrize(("name", "shape"), ONE_SHAPE)
def test_dropout_rate_reaches_every_dropout_or_is_refused(name: str, shape: tuple[int, ...]) -> None:
    try:
        model = models.build(name, shape, 10, 0.3).train()
    except UserError as error:
        assert "--dropout" in str(error)
        assert name in str(error)
        return
    rates = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    assert rates == [0.3] * len(rates) != []
    batch, without = inputs(8, shape), models.build(name, shape, 10, 0.0).train()
    with torch.no_grad():
        assert not torch.equal(model(batch), model(batch))
        assert torch.equal(without(batch), without(batch))


@pytest.mark.parametrize(("name", "shape"), ONE_SHAPE)
def test_the_seed_decides_the_weights(name: str, shape: tuple[int, ...]) -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        model = models.build(name, shape, 10, None)
        return torch.cat([param.detach().flatten() for param in model.parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_refuses_tokens_or_images_and_says_so(name: str) -> None:
    shape, says = ((1, 28, 28), "images") if name == "gpt" else ((24,), "rows of tokens")
    with pytest.raises(UserError, match=f"--model={name} cannot take {says} of shape"):
        models.build(name, shape, 10, None)


def test_gpt_sees_no_later_token() -> None:
    torch.manual_seed(0)
    model = models.build("gpt", (24,), 10, None)
    tokens = inputs(2, (24,))
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 10
    for mode in (True, False):
        with torch.no_grad():
            before, after = model.train(mode)(tokens), model(changed)
        torch.testing.assert_close(before[:, :9], after[:, :9])
        assert (before[:, 9:] != after[:, 9:]).any(dim=-1).all()


def test_mnist_cnn_has_the_1199882_parameters_of_pytorchs_example() -> None:
    model = models.build("mnist_cnn", (1, 28, 28), 10, None)
    assert numbers(model) == 1_199_882
    sizes = [(m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear)]
    assert sizes == [(9216, 128), (128, 10)]
    assert [m.p for m in model.modules() if isinstance(m, nn.Dropout)] == [0.25, 0.5]


def test_mnist_bn_has_batchnorm_after_each_convolution_and_1600_features() -> None:
    model = models.build("mnist_bn", (1, 28, 28), 10, None)
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear | nn.BatchNorm1d | nn.BatchNorm2d)]
    convolutions, features = [nn.Conv2d, nn.BatchNorm2d] * 2, [nn.Linear, nn.BatchNorm1d, nn.Linear]
    assert [type(layer) for layer in layers] == [*convolutions, *features]
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
