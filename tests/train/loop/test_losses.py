"""Label smoothing is in the loss that is trained, as its formula says, and not in the validation loss."""

import pytest
import torch
from torch import Tensor

from tests.ranks import make_trainer, run_ranks
from train.collectives import waiting
from train.loop.losses import PendingLosses, losses_of_samples
from train.world.environment import World

_SMOOTHING = 0.1


def _by_formula(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """The smoothed cross entropy of each sample: a part of each label is spread over all classes."""
    minus_log_p = -torch.log_softmax(logits.detach().double(), dim=-1)
    of_label = minus_log_p.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return (1 - smoothing) * of_label + smoothing * minus_log_p.mean(dim=-1)


@pytest.mark.parametrize("shape", [(7,), (7, 5)], ids=["one label", "a label for each token"])
@pytest.mark.parametrize("smoothing", [0.0, _SMOOTHING])
def test_the_loss_of_a_sample_is_the_formula(smoothing: float, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(*shape, 10, generator=generator)
    labels = torch.randint(0, 10, shape, generator=generator)
    expected = _by_formula(logits, labels, smoothing).view(7, -1).mean(dim=1)
    torch.testing.assert_close(losses_of_samples(logits, labels, smoothing).double(), expected, rtol=1e-5, atol=0)


def _trained_and_validated(world: World, *flags: str) -> list[tuple[float, float]]:
    """Ours and the formula's: the loss of a training step with smoothing, and the validation loss without."""
    trainer = make_trainer(world, "--model=mlp", "--batch-size=100", f"--label-smoothing={_SMOOTHING}", *flags)
    model = trainer.module
    batches = iter(trainer.train_batches())
    inputs, targets = next(batches)
    expected = float(_by_formula(model(inputs), targets, _SMOOTHING).sum())
    trained = float(trainer.run.step(trainer.loss, (inputs, targets), trainer.optimizer).loss_sum)
    validated = trainer.evaluate()["val_loss"]
    [(validation_batches, _)] = trainer.run.reading._evaluated.values()
    losses = [_by_formula(model(inputs), targets, 0.0) for inputs, targets in validation_batches]
    return [(trained, expected), (validated, float(torch.cat(losses).mean()))]


@pytest.mark.parametrize("flags", [(), ("--strategy=pipeline", "--accumulate=2")], ids=["custom_ddp", "pipeline"])
def test_training_smooths_labels_and_validation_does_not(flags: tuple[str, ...]) -> None:
    [losses] = run_ranks(1, _trained_and_validated, *flags)
    for ours, expected in losses:
        assert ours == pytest.approx(expected, rel=1e-5)


def test_a_wait_before_the_clock_of_the_steps_starts_is_not_theirs() -> None:
    losses = PendingLosses()
    with waiting.waiting("input"):
        pass
    losses.begin()
    assert waiting.take_seconds() == {}
