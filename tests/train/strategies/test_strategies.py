"""Every strategy hands the step the same few functions: a forward, no_sync, the bare model's state, clipping."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.optim.swa_utils import AveragedModel

from tests.cli import HANG_S, records, start_ranks
from tests.ranks import make_trainer, run_ranks
from tests.train.devices import needs_fsdp_on_cpus
from train import strategies
from train.collectives.sync_batchnorm import SyncBatchNorm
from train.config import TrainConfig, available
from train.errors import SharedError
from train.loop.numerics import seed
from train.world.environment import World
from train.world.placement import new_group

_CPU = torch.device("cpu")
_FSDP = pytest.param("fsdp", marks=needs_fsdp_on_cpus)
_NAMES = [_FSDP if name == "fsdp" else name for name in available("strategies")]


def _micro_batch(rank: int, part: int) -> Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * rank + part))


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def _world_size(name: str) -> int:
    return 1 if name in ("single", "data_parallel") else 2


def _messages(world: World, name: str) -> list[set[str]]:
    """The collectives of a backward inside no_sync, and of the one after it."""
    context = strategies.Context(TrainConfig(), _CPU, None, world.world_size)
    wrapped = strategies.wrap(name, _model(), context)
    found = []
    for inside in (True, False):
        with torch.profiler.profile() as profile:
            with wrapped.no_sync() if inside else nullcontext():
                wrapped.call(_micro_batch(world.rank, 0)).square().sum().backward()
            if not inside:
                wrapped.after_backward()
        found.append({event.key for event in profile.key_averages() if event.key.startswith("gloo:")})
    return found


# custom_ddp sends nothing over gloo on one host; tests/train/ddp/ counts its reductions.
@pytest.mark.parametrize("name", ["ddp", "hook_per_parameter", "average_after_backward", _FSDP])
def test_nothing_is_sent_until_the_last_micro_batch(name: str) -> None:
    for before, last in run_ranks(2, _messages, name):
        # fsdp gathers parameters for each forward and backward.
        assert not {key for key in before if name != "fsdp" or "gather" not in key}
        assert any("reduce" in key for key in last)


@pytest.mark.slow
@pytest.mark.parametrize("name", _NAMES)
def test_a_run_prints_no_warning_of_torch(name: str, python: str) -> None:
    flags = ["--model=mlp", "--max-steps=2", "--accumulate=2", "--device=cpu"]
    for rank in start_ranks(_world_size(name), *flags, f"--strategy={name}", python=python):
        _, stderr = rank.communicate()
        assert rank.returncode == 0, stderr
        assert "Warning" not in stderr


def _compiles(world: World, name: str, folder: str) -> int:
    """Train a few steps without and with --compile; return how many graphs were compiled."""
    flags = ["--model=mlp", "--max-steps=4", "--accumulate=2", "--device=cpu", f"--strategy={name}"]
    for compiled in (False, True):
        run_dir = f"--run-dir={folder}/{compiled}" if world.rank == 0 else "--log-every=50"
        make_trainer(world, *flags, *(["--compile"] if compiled else []), run_dir).fit()
    return int(counters["stats"]["unique_graphs"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in available("strategies") if name not in ("fsdp", "pipeline")])
def test_a_compiled_model_trains_as_without(name: str, tmp_path: Path) -> None:
    assert all(number > 0 for number in run_ranks(_world_size(name), _compiles, name, str(tmp_path)))
    losses = [[record["loss"] for record in records(tmp_path / str(way), "step")] for way in (False, True)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> strategies.Context:
    """The context of one process that sees two GPUs.  nn.DataParallel, which would ask the driver, is left out."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(nn, "DataParallel", lambda model: model)
    return strategies.Context(TrainConfig(), torch.device("cuda"), None, 1)


def test_data_parallel_refuses_a_compiled_model_on_several_gpus(
    two_gpus: strategies.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategies.wrap("data_parallel", _model(), two_gpus)
    compiled = _model()
    compiled.compile()
    with pytest.raises(SharedError, match=r"compile .* on 2 GPUs: .*leave out compile"):
        strategies.wrap("data_parallel", compiled, two_gpus)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    strategies.wrap("data_parallel", compiled, two_gpus)


class _InAThread(nn.Module):
    """Runs the module in a thread of its own, as nn.DataParallel does with each copy."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as thread:
            outputs: Tensor = thread.submit(self.module, inputs).result()
        return outputs


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_data_parallel_computes_in_the_type_of_the_run_on_each_gpu(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn, "DataParallel", _InAThread)
    context = strategies.Context(TrainConfig.model_validate({"precision": precision}), _CPU, None, 1)
    wrapped = strategies.wrap("data_parallel", _model(), context)
    with strategies.autocast(precision, _CPU):
        assert torch.is_autocast_enabled("cpu") == (precision == "bf16")
        assert torch.equal(wrapped.call(_micro_batch(0, 0)), _model()(_micro_batch(0, 0)).float())


def _seeds_of_gpus(world: World) -> list[int]:
    """What the generators of three GPUs are seeded with; stand-ins, as torch makes them where it sees GPUs."""
    trainer = make_trainer(world, "--model=mlp")
    gpus = [torch.Generator() for _ in range(3)]
    trainer.run.device = torch.device("cuda")
    with mock.patch.multiple(torch.cuda, default_generators=gpus, current_device=lambda: 1):
        seed(trainer.run.device, 0, 1, 0, world.rank)
    return [gpu.initial_seed() for gpu in gpus]


def test_each_gpu_of_data_parallel_draws_random_numbers_of_its_own_from_the_position() -> None:
    (seeds,), (again,) = run_ranks(1, _seeds_of_gpus), run_ranks(1, _seeds_of_gpus)
    assert seeds == again and len({*seeds}) == 3


def test_fsdp_in_bf16_refuses_batchnorm_that_is_not_synchronised() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    context = strategies.Context(TrainConfig(precision="bf16"), _CPU, None, 2, ranks_have_own_buffers=True)
    with pytest.raises(SharedError, match=r'fsdp" with precision="bf16" .*sync_batchnorm=False'):
        strategies.wrap("fsdp", model, context)


def test_data_parallel_refuses_batchnorm_on_several_gpus(two_gpus: strategies.Context) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    with pytest.raises(SharedError, match=r"cannot synchronise BatchNorm .*sync_batchnorm=False"):
        strategies.wrap("data_parallel", model, two_gpus)
    strategies.wrap("data_parallel", model, replace(two_gpus, config=TrainConfig(sync_batchnorm=False)))


def _averaged(world: World, name: str) -> list[str]:
    group = new_group(_CPU, HANG_S)
    context = strategies.Context(TrainConfig(strategy=name), _CPU, group, world.world_size)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    wrapped = strategies.wrap(name, SyncBatchNorm.convert_sync_batchnorm(model, group), context)
    average = AveragedModel(wrapped.call)
    average.update_parameters(wrapped.call)
    average.eval()(torch.ones(3, 4))
    return [*average.state_dict()]


@pytest.mark.parametrize("name", ["custom_ddp", "ddp"])
def test_an_average_of_a_wrapped_model_is_a_copy_of_the_bare_one(name: str) -> None:
    alone = AveragedModel(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)))
    assert run_ranks(2, _averaged, name) == 2 * [[*alone.state_dict()]]
