"""Techniques of one step: each resumes bit for bit and does what its name says."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cli import records
from tests.ranks import make_trainer, run_ranks, train_on_ranks
from train.records.metrics import weights_sha256
from train.world.environment import World

_MLP = ["--model=mlp", "--device=cpu", "--batch-size=500"]
_EVERYTHING = ["--ema=0.9", "--scheduler=one_cycle", "--warmup-steps=4", "--precision=fp16", "--accumulate=2"]
_EVERYTHING += ["--label-smoothing=0.1", "--optimizer=adamw", "--weight-decay=0.1"]


def _checkpoint(folder: Path) -> dict[str, Any]:
    newest = max((folder / "checkpoints").glob("step-*"))
    state: dict[str, Any] = torch.load(newest / "state.pt", weights_only=True)
    return {key: state[key] for key in ("model", "optimizer", "scaler", "ema", "step")}


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)


def test_average_schedule_and_loss_scale_resume_bit_for_bit(tmp_path: Path) -> None:
    def flags(folder: Path) -> list[str]:
        kept = [f"--run-dir={folder}", f"--checkpoint-dir={folder / 'checkpoints'}", "--resume=auto"]
        return [*_MLP, *_EVERYTHING, *kept]

    whole, halved = tmp_path / "whole", tmp_path / "halved"
    train_on_ranks(1, *flags(whole), "--checkpoint-every=7")
    shutil.copytree(whole / "checkpoints" / "step-00000007", halved / "checkpoints" / "step-00000007")
    train_on_ranks(1, *flags(halved))
    assert _equal(_checkpoint(halved), _checkpoint(whole))
    rates = [[record["lr"] for record in records(folder, "step")] for folder in (halved, whole)]
    assert rates[0] == rates[1][7:]
    assert len(set(rates[1])) > 15, "another rate at each step"


def _overflow(world: World, *flags: str) -> tuple[float, int, str]:
    """The last scale of a run that begins far too large, how often it was averaged, its weights' hash."""
    trainer = make_trainer(world, *_MLP, "--precision=fp16", "--lr=0.1", "--max-steps=20", "--ema=0.9", *flags)
    trainer.run.engine.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**36)
    trainer.fit()
    assert trainer.ema is not None
    return trainer.run.engine.scaler.get_scale(), trainer.ema.updates, weights_sha256(trainer.module.state_dict())


def test_fp16_halves_a_scale_that_overflows_on_all_ranks_records_it_and_then_trains(tmp_path: Path) -> None:
    first, second = run_ranks(2, _overflow, "--scheduler=cosine", f"--run-dir={tmp_path}")
    assert first == second
    scale, updates, _ = first
    incidents = records(tmp_path, "incident")
    skipped = len(incidents)
    assert scale == 2.0 ** (36 - skipped) and 0 < skipped < 20
    assert updates == 20 - skipped
    assert [(each["step"], each["kind"]) for each in incidents] == [(n + 1, "skipped_step") for n in range(skipped)]
    assert "the gradient overflowed fp16 at a loss scale of 6.87195e+10" in incidents[0]["text"]
    steps = records(tmp_path, "step")
    assert [record["step"] for record in steps] == [*range(skipped + 1, 21)]
    # The schedule counts a skipped step, too.
    assert steps[0]["lr"] == pytest.approx(0.05 * (1 + math.cos(math.pi * skipped / 20)))


def test_the_average_is_what_is_evaluated_and_the_weights_stay() -> None:
    (results,) = run_ranks(1, _averaged)
    before, inside, after = results
    assert before == after != inside


def _averaged(world: World) -> tuple[str, str, str]:
    trainer = make_trainer(world, *_MLP, "--ema=0.99", "--lr=0.1", "--max-steps=5")
    expected = [param.detach().clone() for param in trainer.module.parameters()]
    trainer.run.records.begin_epoch()
    for update, batch in enumerate(trainer.train_batches(), start=1):
        trainer.run.step(trainer.loss, batch, trainer.optimizer)
        assert trainer.ema is not None
        trainer.ema.update()
        decay = min(0.99, (1 + update) / (10 + update))
        for average, param in zip(expected, trainer.module.parameters(), strict=True):
            average.mul_(decay).add_(param.detach(), alpha=1 - decay)
    before = weights_sha256(trainer.module.state_dict())
    with trainer.evaluated_weights():
        inside = weights_sha256(trainer.module.state_dict())
        for average, param in zip(expected, trainer.module.parameters(), strict=True):
            torch.testing.assert_close(param.detach(), average)
    return before, inside, weights_sha256(trainer.module.state_dict())
