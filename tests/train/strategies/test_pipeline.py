"""pipeline cuts models evenly, and says what it cannot cut; test_oracle.py and test_sharded.py compare its losses."""

from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as drawn
from torch import nn
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe
from torch.torch_version import TorchVersion

from tests.ranks import run_ranks
from tests.train.strategies.dtypes import Dtypes, dtypes_of_a_run
from train import models, strategies
from train.config import TrainConfig
from train.errors import SharedError
from train.strategies.pipeline import even_stretches, refuse_what_cannot_be_cut, schedule

CPU = torch.device("cpu")


@pytest.mark.slow
def test_bf16_computes_in_bf16_and_keeps_the_weights_in_float32() -> None:
    flags = ["--model=mlp", "--batch-size=64", "--max-steps=2", "--accumulate=2"]
    for seen in run_ranks(2, dtypes_of_a_run, *flags, "--strategy=pipeline", "--precision=bf16"):
        assert seen == Dtypes(weights={torch.float32}, outputs={torch.bfloat16}, parameters={torch.float32})


@given(drawn.lists(drawn.integers(0, 100), min_size=1, max_size=9), drawn.integers(1, 9))
def test_stretches_are_as_even_as_any(works: list[int], stages: int) -> None:
    stages = min(stages, len(works))
    found = even_stretches(works, stages)
    assert [at for stretch in found for at in stretch] == [*range(len(works))]
    assert len(found) == stages and all(found)
    every = [[0, *cuts, len(works)] for cuts in combinations(range(1, len(works)), stages - 1)]
    least = min(max(sum(works[start:stop]) for start, stop in pairwise(cuts)) for cuts in every)
    assert max(sum(works[at] for at in stretch) for stretch in found) == least


def _context(world_size: int, micro_batches: int) -> strategies.Context:
    return strategies.Context(TrainConfig(strategy="pipeline", accumulate=micro_batches), CPU, None, world_size)


class _Shared(nn.Sequential):
    def __init__(self) -> None:
        layer = nn.Linear(4, 4)
        super().__init__(layer, nn.ReLU(), layer, nn.ReLU(), nn.Sequential(layer))


@pytest.mark.parametrize(
    ("model", "world_size", "micro_batches", "says"),
    [
        (lambda: models.build("resnet18", (1, 28, 28), 10, None), 2, 2, "not an nn.Sequential"),
        (lambda: models.build("mnist_bn", (1, 28, 28), 10, None), 2, 2, "BatchNorm would take the statistics"),
        (lambda: models.build("mlp", (1, 28, 28), 10, None), 4, 4, "3 layers with parameters, too few for 4 stages"),
        (lambda: models.build("mlp", (1, 28, 28), 10, None), 2, 1, "needs --accumulate=2 or more"),
        (_Shared, 2, 2, "share a parameter"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_the_reason(
    model: Any, world_size: int, micro_batches: int, says: str
) -> None:
    with pytest.raises(SharedError, match=f"--strategy=pipeline .*{says}"):
        refuse_what_cannot_be_cut(model(), _context(world_size, micro_batches))


@pytest.mark.parametrize(("version", "between_cpus"), [("2.7.1", ScheduleGPipe), ("2.8.0", Schedule1F1B)])
def test_1f1b_is_not_used_between_cpus_where_torch_loses_messages(
    version: str, between_cpus: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    assert (schedule(CPU), schedule(torch.device("cuda"))) == (between_cpus, Schedule1F1B)
