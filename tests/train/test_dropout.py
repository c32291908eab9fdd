"""Our dropout is torch's but for the random numbers."""

from __future__ import annotations

import pytest
import torch

from train.dropout import Dropout

RATES = [0.1, 0.25, 0.5, 0.9]


@pytest.mark.parametrize("p", RATES)
def test_share_and_scale_are_those_of_p_in_each_quarter_of_a_draw(p: float) -> None:
    torch.manual_seed(0)
    output = Dropout(p)(torch.ones(400_000))
    values = output.unique().tolist()
    assert values == pytest.approx([0.0, 1 / (1 - p)], rel=1e-4)
    for lane in range(4):
        # Five standard deviations of the mean of 100,000 draws.
        assert (output[lane::4] > 0).float().mean().item() == pytest.approx(1 - p, abs=5 * (p * (1 - p) / 1e5) ** 0.5)


@pytest.mark.parametrize("p", RATES)
def test_neighbours_are_dropped_independently(p: float) -> None:
    torch.manual_seed(0)
    kept = (Dropout(p)(torch.ones(400_000)) > 0).float() - (1 - p)
    variance = p * (1 - p)
    for distance in (1, 2, 3, 4):
        assert (kept[distance:] * kept[:-distance]).mean().item() == pytest.approx(0, abs=5 * variance / 400_000**0.5)


def test_the_gradient_passes_where_the_value_did() -> None:
    torch.manual_seed(0)
    input = torch.full((30, 7), 2.0, requires_grad=True)
    output = Dropout(0.5)(input)
    output.sum().backward()
    assert input.grad is not None
    assert torch.equal(input.grad * 2, output)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5])
def test_any_number_of_elements(length: int) -> None:
    assert Dropout(0.5)(torch.ones(length)).shape == (length,)


def test_the_memory_layout_of_the_input_stays() -> None:
    images = torch.ones(4, 3, 5, 5).to(memory_format=torch.channels_last)
    assert Dropout(0.5)(images).is_contiguous(memory_format=torch.channels_last)
    assert Dropout(0.5)(images[:, :, ::2]).shape == (4, 3, 3, 5)


def test_the_seed_decides() -> None:
    def output(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        kept: torch.Tensor = Dropout(0.5)(torch.ones(100))
        return kept

    assert torch.equal(output(1), output(1))
    assert not torch.equal(output(1), output(2))


@pytest.mark.parametrize(("p", "expected"), [(0.0, 1.0), (1.0, 0.0)])
def test_nothing_or_all_is_dropped_at_the_ends(p: float, expected: float) -> None:
    assert Dropout(p)(torch.ones(5)).tolist() == [expected] * 5


def test_evaluation_changes_nothing() -> None:
    assert Dropout(0.5).eval()(torch.ones(5)).tolist() == [1.0] * 5
