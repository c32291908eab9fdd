"""Each sync averages gradients within its precision, on real processes."""

import pytest
import torch
from torch import Tensor, nn

from tests.ranks import run_ranks
from train import sync
from train.ddp.wrapper import CustomDDP
from train.world.environment import World


class _Given(nn.Module):
    """One matrix whose gradient is the input."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.zeros(40, 30, dtype=dtype))

    def forward(self, gradient: Tensor) -> Tensor:
        return (self.matrix * gradient).sum()


def _averages(world: World, name: str, gradients: list[Tensor]) -> list[Tensor]:
    """What each of `gradients`, times rank + 1, becomes, one step after the other."""
    results = []
    model = _Given(gradients[0].dtype)
    wrapped = CustomDDP(model, sync=sync.named(name))
    for gradient in gradients:
        model.zero_grad()
        wrapped(gradient * (world.rank + 1)).backward()
        assert model.matrix.grad is not None
        results.append(model.matrix.grad.clone())
    return results


def _same_on_all(results: list[list[Tensor]]) -> list[Tensor]:
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0, atol=0, equal_nan=True)
    return results[0]


@pytest.mark.parametrize(("name", "relative"), [("all_reduce", 1e-6), ("bf16", 2**-7)])
def test_a_mean_is_right_within_the_precision_of_the_wire_also_after_an_infinite_gradient(
    name: str, relative: float
) -> None:
    torch.manual_seed(0)
    # From one step to the next gradients shrink and grow by more than a fixed scale could hold.
    gradients = [torch.randn(40, 30) * scale for scale in (1.0, 1e-6, 1e6, 1.0)]
    broken = gradients[0].clone()
    broken[3, 4] = torch.inf
    infinite, *results = _same_on_all(run_ranks(2, _averages, name, [broken, *gradients]))
    assert not infinite[3, 4].isfinite() and infinite[:3].isfinite().all()
    for gradient, result in zip(gradients, results, strict=True):
        torch.testing.assert_close(result, 1.5 * gradient, rtol=2 * relative, atol=float(gradient.abs().max()) * 2**-12)


def test_bf16_sends_doubles_as_they_are() -> None:
    gradient = torch.randn(40, 30, dtype=torch.float64)
    [result] = _same_on_all(run_ranks(2, _averages, "bf16", [gradient]))
    torch.testing.assert_close(result, 1.5 * gradient, rtol=1e-12, atol=1e-12)
