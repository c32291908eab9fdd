"""fsdp trains as one process does, and each rank holds its part of the parameters alone."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.cli import records
from tests.ranks import make_trainer, run_ranks, train_on_ranks
from tests.train.devices import needs_fsdp_on_cpus
from tests.train.strategies.dtypes import Dtypes, dtypes_of_a_run
from train import models, strategies
from train.config import TrainConfig
from train.errors import SharedError
from train.world.environment import World


@needs_fsdp_on_cpus
@pytest.mark.slow
@pytest.mark.parametrize(
    ("world_size", "flags"),
    [(1, ()), (2, ()), (2, ("--accumulate=3",)), (4, ())],
    ids=str,
)
def test_the_loss_of_each_step_equals_one_process(gpt_losses: Any, world_size: int, flags: tuple[str, ...]) -> None:
    expected = gpt_losses(1, "--strategy=single")
    assert min(expected) < 0.7 * expected[0], "nothing was learned, so equal losses would mean little"
    assert gpt_losses(world_size, "--strategy=fsdp", *flags) == pytest.approx(expected, rel=1e-4)


def _bytes_of_tensors() -> int:
    """The memory of all tensors that this process holds, each storage once."""
    storages = {}
    for found in gc.get_objects():
        if type(found) in (torch.Tensor, nn.Parameter):
            storage = found.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _memory(world: World, name: str) -> list[int]:
    """Bytes of tensors after the model is built, after it is sharded, and after a training step of SGD."""
    torch.manual_seed(0)
    model = models.build("gpt", (16,), 256, None)
    gc.collect()
    held = [_bytes_of_tensors()]
    context = strategies.Context(TrainConfig(), torch.device("cpu"), None, world.world_size)
    wrapped = strategies.wrap(name, model, context)
    gc.collect()
    held.append(_bytes_of_tensors())
    wrapped.call(torch.zeros((1, 16), dtype=torch.int64)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.zero_grad()
    gc.collect()
    held.append(_bytes_of_tensors())
    return held


@needs_fsdp_on_cpus
@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 4])
def test_each_rank_holds_one_part_of_the_parameters(world_size: int) -> None:
    for whole, sharded, trained in run_ranks(world_size, _memory, "fsdp"):
        assert whole > 43e6, "10.8 million parameters of 4 bytes"
        # Rows are dealt out whole, and the test holds a few numbers of its own.
        assert sharded == pytest.approx(whole / world_size, rel=0.02)
        assert trained == pytest.approx(whole / world_size, rel=0.02)


@needs_fsdp_on_cpus
@pytest.mark.slow
def test_bf16_computes_in_bf16_and_keeps_the_weights_in_float32(tmp_path: Path) -> None:
    flags = ["--model=mlp", "--batch-size=64", "--max-steps=20", "--lr=0.1", "--precision=bf16"]
    train_on_ranks(2, *flags, "--strategy=fsdp", f"--run-dir={tmp_path / 'fsdp'}")
    train_on_ranks(1, *flags, "--strategy=single", f"--run-dir={tmp_path / 'single'}")
    ours, theirs = ([record["loss"] for record in records(tmp_path / name, "step")] for name in ("fsdp", "single"))
    assert ours == pytest.approx(theirs, rel=0.02)
    # Autocast alone would compute in bf16, too, but gather the weights as float32: twice the bytes.
    for seen in run_ranks(2, dtypes_of_a_run, *flags, "--strategy=fsdp"):
        assert seen == Dtypes(weights={torch.bfloat16}, outputs={torch.bfloat16}, parameters={torch.float32})


@needs_fsdp_on_cpus
@pytest.mark.slow
def test_an_evaluation_in_which_a_rank_has_no_samples_ends(tmp_path: Path) -> None:
    # 2,000 samples of three ranks in batches of 999: 667, 667 and 666, so the last batch of the third is empty.
    train_on_ranks(3, "--model=mlp", "--batch-size=999", "--max-steps=1", "--strategy=fsdp", f"--run-dir={tmp_path}")
    [epoch], [end] = records(tmp_path, "epoch"), records(tmp_path, "end")
    assert 0 < epoch["val_accuracy"] < 1
    assert len(bytes.fromhex(end["weights_sha256"])) == 32


def _saved_buffers(world: World) -> tuple[list[Tensor], list[Tensor]]:
    """This rank's buffers after a step with statistics of its own, and those in what it would save."""
    flags = ["--model=mnist_bn", "--strategy=fsdp", "--no-sync-batchnorm", "--batch-size=8", "--device=cpu"]
    trainer = make_trainer(world, *flags)
    batches = iter(trainer.train_batches())
    trainer.run.step(trainer.loss, next(batches), trainer.optimizer)
    own = [buffer.clone() for buffer in trainer.module.buffers()]
    saved = trainer.run.saving.state_dict()["shards"]
    return own, [saved[f"model.{name}"].clone() for name, _ in trainer.module.named_buffers()]


@needs_fsdp_on_cpus
@pytest.mark.slow
def test_a_save_within_an_epoch_keeps_rank_0s_buffers_on_every_rank() -> None:
    (own, first), (other, second) = run_ranks(2, _saved_buffers)
    assert not all(map(torch.equal, own, other)), "or any rank's would do"
    assert all(map(torch.equal, first, own)) and all(map(torch.equal, second, own))


def test_a_torch_whose_fully_shard_fails_on_cpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu.Stream, "record_event", raising=False)
    context = strategies.Context(TrainConfig(), torch.device("cpu"), None, 2)
    with pytest.raises(SharedError, match=r'strategy="fsdp" .* torch 2\.7 or newer'):
        strategies.wrap("fsdp", nn.Linear(1, 1), context)
