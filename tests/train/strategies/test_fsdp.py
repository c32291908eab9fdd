"""fsdp: each rank holds its part of the parameters alone; test_oracle.py and test_sharded.py compare its losses."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import distribute_tensor
from torch.utils.data import TensorDataset

from tests.cli import records
from tests.ranks import launched, make_trainer, run_ranks, train_on_ranks
from tests.train.devices import needs_fsdp_on_cpus
from tests.train.strategies.dtypes import Dtypes, dtypes_of_a_run
from train import models, strategies
from train.config import TrainConfig
from train.errors import SharedError
from train.run import Run
from train.world.environment import World


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
def test_bf16_computes_in_bf16_and_keeps_the_weights_in_float32() -> None:
    flags = ["--model=mlp", "--batch-size=64", "--max-steps=2", "--precision=bf16"]
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


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer, self.head = nn.Embedding(31, 8), nn.Linear(8, 8), nn.Linear(8, 31, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Any:
        return self.head(self.layer(self.embed(x)).tanh())


def _train_tied(strategy: str, how: str, folder: Path, epochs: int) -> None:
    run = Run(seed=1, strategy=strategy, checkpoint_dir=folder, run_dir=folder, resume="auto")
    model: Any = run.wrap(_Tied())
    optimizers: list[Any]
    if how == "two":
        optimizers = [torch.optim.SGD([model.layer.weight], lr=0.1, momentum=0.9)]
        optimizers.append(torch.optim.AdamW([model.embed.weight, model.layer.bias], lr=0.1))
    else:
        optimizers = [pytest.importorskip("schedulefree").AdamWScheduleFree(model.parameters(), lr=0.1)]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(each, 0.5) for each in optimizers if how == "two"]
    run.restore(model=model, **{f"thing{n}": each for n, each in enumerate([*optimizers, *schedulers])})
    dataset = TensorDataset(torch.arange(40).remainder(31).view(-1, 1), torch.arange(40).mul(7).remainder(31))

    def loss(batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0])[:, 0], batch[1])

    run.evaluate(lambda batch: {"loss": loss(batch)}, dataset, 8)
    for epoch in run.epochs(3):
        for optimizer in optimizers:
            getattr(optimizer, "train", lambda: None)()
        for batch in run.batches(dataset, 8):
            for optimizer in optimizers:
                run.step(loss, batch, optimizer)
        for scheduler in schedulers:
            scheduler.step()
        if epoch == epochs:
            run.end()
            break


@needs_fsdp_on_cpus
@pytest.mark.slow
@pytest.mark.parametrize("how", ["two", "schedule-free"])
def test_tied_weights_optimizers_and_their_rates_resume_on_another_number_of_processes(
    how: str, tmp_path: Path
) -> None:
    if how == "schedule-free":
        pytest.importorskip("schedulefree")
    launched(1, _train_tied, "single", how, tmp_path / "one", 3)
    launched(2, _train_tied, "fsdp", how, tmp_path / "fsdp", 1)
    launched(3, _train_tied, "fsdp", how, tmp_path / "fsdp", 3)
    one, sharded = ([record["loss"] for record in records(tmp_path / name, "step")] for name in ("one", "fsdp"))
    assert sharded == pytest.approx(one, rel=1e-4)
    assert one[-1] < 0.8 * one[0]


def _updated_by_muon(world: World) -> tuple[Tensor, Tensor]:
    """A weight after a step of Muon, whole and sharded, with the same gradient."""
    gradient = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    whole, sharded = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    wrapped: Any = strategies.wrap(
        "fsdp", sharded, strategies.Context(TrainConfig(), torch.device("cpu"), None, 2)
    ).module
    with torch.no_grad():
        whole.weight.copy_(wrapped.weight.full_tensor())
    whole.weight.grad = gradient
    wrapped.weight.grad = distribute_tensor(gradient, wrapped.weight.device_mesh, wrapped.weight.placements)
    for module in (whole, wrapped):
        torch.optim.Muon(module.parameters(), lr=0.1).step()
    return whole.weight.detach(), wrapped.weight.full_tensor().detach()


@needs_fsdp_on_cpus
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch.optim.Muon came with torch 2.9")
def test_muon_moves_a_sharded_weight_as_a_whole_one() -> None:
    for whole, sharded in run_ranks(2, _updated_by_muon):
        torch.testing.assert_close(sharded, whole, rtol=0, atol=1e-3)


def test_a_torch_whose_fully_shard_fails_on_cpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu.Stream, "record_event", raising=False)
    context = strategies.Context(TrainConfig(), torch.device("cpu"), None, 2)
    with pytest.raises(SharedError, match=r'strategy="fsdp" .* torch 2\.7 or newer'):
        strategies.wrap("fsdp", nn.Linear(1, 1), context)
