"""With --logical-world the weights are the same bits on any number of processes; tests/faults has crashes."""

import itertools
import math
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from tests.cli import ROOT, records, start_ranks
from tests.idx import write_small_mnist
from tests.ranks import launched, make_trainer, run_ranks, train_on_ranks
from train.collectives import tree_sum
from train.collectives.tree_sum import SubtreeSums, TreeSum, subtrees
from train.cpu.shared_memory import SharedMemory
from train.data.shard import share
from train.datasets import tokens
from train.errors import UserError
from train.loop.exact_step import parts_of_sum, unpack
from train.run import Run
from train.world.environment import World

_IMAGES = "--dataset=mnist --batch-size=50 --epochs=2 --lr=0.05 --no-sync-batchnorm --logical-world=4"
# 203 samples: the last batch has 3, for four slices, or one where BatchNorm needs two in each.
CASES = {
    "mlp with AdamW in bf16": f"{_IMAGES} --model=mlp --optimizer=adamw --precision=bf16 --ema=0.9",
    "dropout and clipping": f"{_IMAGES} --model=mnist_cnn --dropout=0.25 --clip-norm=1 --momentum=0.9",
    "BatchNorm": f"{_IMAGES} --model=mnist_bn --accumulate=2 --scheduler=cosine",
    "more slices than processes share": f"{_IMAGES} --model=mnist_bn --logical-world=5",
}
_OTHERS = "--max-steps=6 --lr=0.01 --batch-size=20 --no-sync-batchnorm --logical-world=4"
SLOW_CASES = {
    "gpt on tokens": f"{_OTHERS} --model=gpt --dataset=tokens --dropout=0.1 --optimizer=adamw --clip-norm=1",
    "resnet18": f"{_OTHERS} --model=resnet18 --dataset=mnist --max-steps=3",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_small_mnist(folder, 203, 101)
    tokens.write([ROOT / "README.md"], folder, context=16)
    return folder


def end(run_dir: Path) -> tuple[str, float]:
    """The hash of the weights, and the validation loss."""
    return records(run_dir, "end")[-1]["weights_sha256"], records(run_dir, "epoch")[-1]["val_loss"]


def _train_each(world: World, cases: dict[str, str], data: Path, folder: Path) -> None:
    for name, flags in cases.items():
        trainer = make_trainer(world, *flags.split(), f"--data-root={data}", f"--run-dir={folder / name}")
        with trainer.run.saving.files:
            trainer.fit()


@pytest.mark.parametrize(
    ("cases", "sizes"), [(CASES, (1, 3)), pytest.param(CASES | SLOW_CASES, (1, 2, 3, 4), marks=pytest.mark.slow)]
)
def test_weights_and_validation_loss_are_the_same_bits_on_any_number_of_processes_and_differ_without_slices(
    cases: dict[str, str], sizes: tuple[int, ...], data: Path, tmp_path: Path
) -> None:
    without = {"without slices": CASES["dropout and clipping"].replace("--logical-world=4", "")}
    for world_size in sizes:
        run_ranks(world_size, _train_each, cases | without, data, tmp_path / str(world_size))
    for name in cases | without:
        ends = {end(tmp_path / str(world_size) / name) for world_size in sizes}
        assert (len(ends) == 1) == (name in cases), name


def _regression(folder: Path) -> None:
    sys.argv = ["regression", f"--folder={folder}", "--logical-world=4", "--epochs=1"]
    runpy.run_path(str(ROOT / "jobs" / "scripts" / "regression.py"), run_name="__main__")


class _Counting(nn.Module):
    """Dropout, BatchNorm and a buffer of whole numbers; part of it is frozen, part of it unused."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.unused = nn.Linear(2, 2)
        self.layers[0].bias.requires_grad_(False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("turned", torch.zeros(2, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.get_buffer("seen").add_(len(x) * self.training)
        self.get_buffer("turned").add_(torch.complex(x[0, 0], x[-1, -1]) * self.training)
        return self.layers(x)[:, 0]  # type: ignore[no-any-return]


def _two_steps_a_batch(folder: Path) -> None:
    run = Run(seed=1, run_dir=str(folder), logical_world=4, sync_batchnorm=False)
    model = run.wrap(_Counting())
    optimizer = torch.optim.AdamW((param for param in model.parameters() if param.requires_grad), lr=0.01)
    run.restore(model=model, optimizer=optimizer)
    draws = list[float]()

    def outputs(batch: list[torch.Tensor]) -> torch.Tensor:
        draws.append(float(torch.rand(())))
        result: torch.Tensor = model(batch[0])
        return result

    data = TensorDataset(torch.randn(63, 3, generator=torch.Generator().manual_seed(0)))
    for _ in run.epochs(2):
        for batch in run.batches(data, batch_size=20):
            for _ in range(2):
                run.step(outputs, batch, optimizer)
        run.record(**run.evaluate(lambda b: {"val_loss": model(b[0])}, data, batch_size=20))
    assert len({*draws}) == len(draws)
    assert model.get_buffer("seen") > 0 and model.get_buffer("turned").imag.all()
    with pytest.raises(UserError, match=r"run\.apply"):
        run.apply(optimizer)


def _fractional_weights(folder: Path) -> None:
    """Train 200 steps in float64, where each last bit of the sum of the weights shows."""
    run, draws = Run(seed=1, run_dir=folder, logical_world=4), torch.Generator().manual_seed(0)
    model = run.wrap(nn.Linear(3, 1).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    points, weights = (torch.rand(2000, n, dtype=torch.float64, generator=draws) for n in (3, 1))
    data = TensorDataset(points, weights[:, 0])

    def loss(batch: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return ((model(batch[0])[:, 0] - batch[1]).square() * batch[1]).sum(), batch[1].sum()

    for _ in run.epochs(1):
        for batch in run.batches(data, batch_size=10):
            run.step(loss, batch, optimizer)
        run.record(**run.evaluate(lambda b: {"val_loss": loss(b)}, data, batch_size=10))


@pytest.mark.parametrize(
    "loop",
    [_regression, _two_steps_a_batch, pytest.param(_fractional_weights, marks=pytest.mark.slow)],
    ids=["a script", "two steps a batch, buffers, frozen and unused parts", "weights that are no whole numbers"],
)
def test_a_loop_of_ones_own_has_the_same_bits_on_any_number_of_processes(
    loop: Callable[[Path], None], tmp_path: Path
) -> None:
    for world_size in (1, 2, 3):
        launched(world_size, loop, tmp_path / str(world_size))
    assert len({end(folder) for folder in tmp_path.iterdir()}) == 1


def _sets_a_buffer_and_fails_in_the_second_step(folder: Path, logical_world: int | None) -> tuple[list[int], int]:
    run = Run(logical_world=logical_world, sync_batchnorm=False, checkpoint_dir=str(folder))
    model = run.wrap(_Counting())
    optimizer = torch.optim.SGD((param for param in model.parameters() if param.requires_grad), lr=0.1)
    run.restore(model=model, optimizer=optimizer)
    (seen,), found = [buffer for name, buffer in model.named_buffers() if name.endswith("seen")], list[int]()

    def outputs(batch: list[torch.Tensor]) -> torch.Tensor:
        result: torch.Tensor = model(batch[0])
        assert not run.steps_done, "fails"
        return result

    with pytest.raises(AssertionError, match="fails"), run.loop.saved_after_failure():
        for _ in run.epochs(1):
            for batch in run.batches(TensorDataset(torch.randn(40, 3)), batch_size=20):
                seen.fill_(100 * (run.steps_done + 1))
                run.step(outputs, batch, optimizer)
                found.append(int(seen))
    return found, int(torch.load(folder / "step-00000001" / "state.pt", weights_only=True)["model"]["seen"])


@pytest.mark.parametrize(("logical_world", "seen"), [(4, 105), (None, 120)])
def test_buffer_that_the_loop_sets_counts_and_a_failed_step_leaves_none_of_it_in_the_checkpoint(
    logical_world: int | None, seen: int, tmp_path: Path
) -> None:
    assert launched(1, _sets_a_buffer_and_fails_in_the_second_step, tmp_path, logical_world) == [([seen], seen)]


def _frozen(folder: Path) -> None:
    run = Run(logical_world=4)
    model = run.wrap(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.requires_grad_(False)
    for _ in run.epochs(1):
        for batch in run.batches(TensorDataset(torch.randn(20, 3)), batch_size=20):
            run.step(lambda part: model(part[0]).square().mean(), batch, optimizer)


def test_a_step_that_trains_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="all parameters of the optimizer are frozen"):
        launched(1, _frozen, tmp_path)


class _Keeping(torch.optim.SGD):
    kept: ClassVar[list[tuple[torch.Tensor | None, torch.Tensor]]] = []

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        params = self.param_groups[0]["params"]
        self.kept.extend((param.grad, param.grad.clone()) for param in params)
        super().step(closure)


def _keeps_gradients(folder: Path) -> None:
    run = Run(seed=1, logical_world=4)
    model = run.wrap(nn.Linear(3, 1))
    optimizer = _Keeping(model.parameters(), lr=0.1)
    for _ in run.epochs(1):
        for batch in run.batches(TensorDataset(torch.randn(20, 3)), batch_size=5):
            run.step(lambda part: model(part[0]).square().mean(), batch, optimizer)
    assert len(optimizer.kept) == 8
    assert all(kept is not None and torch.equal(kept, then) for kept, then in optimizer.kept)


def test_gradient_that_an_optimizer_keeps_stays_as_it_was(tmp_path: Path) -> None:
    launched(2, _keeps_gradients, tmp_path)


def test_a_run_is_not_resumed_with_other_slices(data: Path, tmp_path: Path) -> None:
    flags = [*CASES["dropout and clipping"].split(), f"--data-root={data}", f"--checkpoint-dir={tmp_path}"]
    train_on_ranks(1, *flags, "--max-steps=2")
    for other, said in (("--accumulate=2", "slices was 4 and is 8"), ("--logical-world=2", 'logical_world was "4"')):
        with pytest.raises(RuntimeError, match=said):
            train_on_ranks(1, *flags, "--resume=auto", "--max-steps=4", other)


def _said(world_size: int, *flags: str, **environment: str) -> str:
    return "".join("".join(rank.communicate()) for rank in start_ranks(world_size, *flags, **environment))


@pytest.mark.slow
def test_what_else_decides_the_bits_is_compared_at_a_resume_and_between_ranks(tmp_path: Path) -> None:
    flags = f"--dataset=synthetic --model=mlp --logical-world=2 --checkpoint-dir={tmp_path} --resume=auto".split()
    _said(1, *flags, "--max-steps=2", OMP_NUM_THREADS="2", ATEN_CPU_CAPABILITY="default")
    said = _said(1, *flags, "--max-steps=4", ATEN_CPU_CAPABILITY="avx2")
    # torch 2.6 says NO AVX
    assert re.search("computed on cpu (DEFAULT|NO AVX), and this is cpu AVX2: the bits may change", said)
    saved = torch.load(tmp_path / "step-00000004" / "state.pt", weights_only=True)
    assert saved["computes_on"]["threads"] == "2 threads"
    said = _said(2, *flags, "--max-steps=6", OMP_NUM_THREADS="{rank}")  # 0: one for each core
    assert (
        re.search("threads on rank 0; .* threads on rank 1: their bits may differ", said)
        and "leave out --logical-world" in said
    )


@given(st.integers(1, 40), st.integers(1, 9))
def test_any_cut_of_the_slices_gives_the_same_subtrees_and_sum(num_slices: int, world_size: int) -> None:
    vectors = torch.randn(num_slices, 7, generator=torch.Generator().manual_seed(num_slices))
    alone, together = SubtreeSums(), SubtreeSums()
    for number in range(num_slices):
        alone.add(0, number, vectors[number].clone())
    for rank in range(world_size):
        numbers, own = share(range(num_slices), rank, world_size), SubtreeSums()
        for number in numbers:
            own.add(0, number, vectors[number].clone())
        assert [node[:2] for node in own.nodes] == subtrees(numbers)[0]
        assert len(own.nodes) <= 2 * num_slices.bit_length()
        for node in own.nodes:
            together.add(*node)
    assert torch.equal(together.total(), alone.total())


_SUMS = [*itertools.product((1, 2, 5, 8), (1, 3, 1000))]


def _sums(world: World) -> list[torch.Tensor]:
    """The sums through shared memory, if there are other ranks, and then those by messages."""
    found, group = [], dist.group.WORLD
    assert group is not None
    ways = [SharedMemory.of_one_host(group), None]
    assert (ways[0] is None) == (world.world_size == 1)
    with mock.patch.object(tree_sum, "_CHUNK_BYTES", 400):
        for memory, (num_slices, size) in itertools.product(ways, _SUMS):
            vectors = torch.randn(num_slices, size, generator=torch.Generator().manual_seed(size))
            slices = [share(range(num_slices), rank, world.world_size) for rank in range(world.world_size)]
            sums = TreeSum(size, vectors.new_empty(0), group, memory)
            for _ in range(2):  # with the same memory
                sums.begin(slices)
                for number in slices[world.rank]:
                    sums.add(number, vectors[number].split(2))
                found.append(sums.total().clone())
    return found


def test_sum_over_ranks_through_shared_memory_and_by_messages_is_that_of_one_rank_on_all_ranks() -> None:
    (alone,) = run_ranks(1, _sums)
    for world_size in (2, 3):
        for found in run_ranks(world_size, _sums):
            assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, alone, strict=True))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--logical-world=1", "--logical-world is 1, and 2 processes were started"),
        ("--logical-world=2 --model=mnist_bn", "add --no-sync-batchnorm"),
    ],
)
def test_what_cannot_be_exact_is_refused_at_the_start(flags: str, said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        train_on_ranks(2, *flags.split(), "--dataset=synthetic", "--max-steps=1", "--device=cpu")


def test_buffer_that_no_slice_changes_stays_as_it_is() -> None:
    param, buffer = nn.Parameter(torch.zeros(1)), torch.tensor([0.1, math.inf, 1e-3])
    before, sums = [buffer.clone()], TreeSum(5, torch.empty(0), None, None)
    sums.begin([range(3)])
    for number in range(3):
        sums.add(number, parts_of_sum([param], [buffer], before))
    unpack(sums.total(), [param], [buffer], before, num_slices=3)
    assert torch.equal(buffer, before[0]) and param.grad is None
