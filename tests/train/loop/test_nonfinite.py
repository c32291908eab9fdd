"""NaN in one sample of one rank: all ranks stop before that step or skip it, together, and name the sample."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.cli import records
from tests.ranks import make_trainer, run_ranks, train_on_ranks
from tests.train.devices import needs_fsdp_on_cpus
from train.data.sampler import ShardSampler
from train.loop.nonfinite import NonFinite
from train.records.metrics import weights_sha256
from train.trainer import Trainer
from train.world.environment import World

# BatchNorm: its running statistics see the sample before anybody knows that it is bad.
_FLAGS = ["--model=mnist_bn", "--device=cpu", "--batch-size=50", "--lr=0.01", "--momentum=0.9", "--max-steps=6"]
_BAD_STEP = 3


def _bad_sample() -> int:
    """A sample that rank 1 of 2 reads at step _BAD_STEP."""
    of_rank_1 = list(ShardSampler(10_000, 50, 1, 2, 0))
    return of_rank_1[_BAD_STEP - 1][4]


class _WithNan:
    """A trainer's batches, with NaN in one pixel of one sample."""

    def __init__(self, trainer: Trainer, sample: int) -> None:
        assert trainer.run.position.sampler is not None
        self.batches, self.sampler, self.sample = trainer.run.reading.training, trainer.run.position.sampler, sample

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for indices, (images, labels) in zip(self.sampler, self.batches, strict=True):
            if self.sample in indices:
                images[indices.index(self.sample), 0, 5, 5] = torch.nan
            yield images, labels


def _train(world: World, *flags: str) -> tuple[str | None, str]:
    """Train with the bad sample; return why the run stopped, if it did, and the hash of the weights."""
    trainer = make_trainer(world, *_FLAGS, *flags)
    trainer.run.reading.training = _WithNan(trainer, _bad_sample())
    stopped = None
    try:
        with trainer.run.saving.files:
            trainer.fit()
    except NonFinite as error:
        stopped = str(error)
    return stopped, weights_sha256(trainer.run.engine.models[0].state_dict())


def _flags(folder: Path) -> list[str]:
    return [f"--run-dir={folder}", f"--checkpoint-dir={folder / 'checkpoints'}", "--resume=auto"]


@pytest.mark.parametrize("strategy", ["custom_ddp", "ddp", pytest.param("fsdp", marks=needs_fsdp_on_cpus), "pipeline"])
def test_all_ranks_stop_before_the_step_and_the_state_before_it_is_saved(strategy: str, tmp_path: Path) -> None:
    spread = strategy in ("fsdp", "pipeline")
    setting = [f"--strategy={strategy}", *(["--model=mlp"] if spread else [])]
    setting += ["--accumulate=2"] if strategy == "pipeline" else []
    flags = [*setting, *_flags(tmp_path / "stopped")]
    (stopped, weights), other = run_ranks(2, _train, *flags)
    assert stopped is not None and other[0] == stopped
    assert spread or other[1] == weights  # otherwise rank 0 alone gets the whole weights
    rank = 0 if strategy == "pipeline" else 1  # both stages read each sample
    assert stopped.count(f"rank {rank}: the input of sample {_bad_sample()} of the training set is not finite") == 1
    assert stopped.startswith("step 3: ") and stopped.count("rank ") == 1
    assert [path.name for path in (tmp_path / "stopped" / "checkpoints").iterdir()] == ["step-00000002"]
    assert [record["step"] for record in records(tmp_path / "stopped", "step")] == [1, 2]

    # With the sample mended the run goes on as if it had never been bad.
    train_on_ranks(2, *_FLAGS, *flags)
    train_on_ranks(2, *_FLAGS, *setting, *_flags(tmp_path / "whole"))
    (stopped_end,), (whole_end,) = records(tmp_path / "stopped", "end"), records(tmp_path / "whole", "end")
    assert stopped_end["weights_sha256"] == whole_end["weights_sha256"]


def test_all_ranks_skip_the_step_and_train_on(tmp_path: Path) -> None:
    (stopped, weights), other = run_ranks(2, _train, "--on-nonfinite=skip", f"--run-dir={tmp_path}")
    assert stopped is None
    assert other == (stopped, weights)
    (incident,) = records(tmp_path, "incident")
    assert (incident["step"], incident["kind"]) == (_BAD_STEP, "skipped_step")
    assert f"sample {_bad_sample()} " in incident["text"]
    assert [record["step"] for record in records(tmp_path, "step")] == [1, 2, 4, 5, 6]
    (epoch,) = records(tmp_path, "epoch")
    assert (epoch["samples"], epoch["samples_read"]) == (5 * 50, 6 * 50)
    assert epoch["val_loss"] < 10  # finite, so the running statistics are


def test_weights_that_give_no_finite_loss_stop_a_run_that_skips() -> None:
    (result,) = run_ranks(1, _diverge)
    assert "(10 such steps in a row)" in result


def _diverge(world: World) -> str:
    flags = ["--model=mlp", "--device=cpu", "--lr=1e30", "--batch-size=100", "--on-nonfinite=skip"]
    with pytest.raises(NonFinite) as raised:
        make_trainer(world, *flags).fit()
    return str(raised.value)
