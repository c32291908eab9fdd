"""One's own loop: what says nothing is skipped in words, and the commonest slips end in a sentence."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, TensorDataset

import train
from tests.cli import records
from tests.ranks import launched
from train.data.shard import epoch_order
from train.run import Run

_NOTHING = "the weights that all ranks returned sum to 0: the batch has no loss"
_WANTED = "return the mean over the samples, or the {} of each, or (sum, weight)"


def _trained(folder: Path | None, way: str) -> tuple[list[float], list[str | None]]:
    """Train three batches, of which only one has weights, and return the model's weights and what was skipped."""
    run = Run(seed=1, run_dir=folder, logical_world=2 if way == "exact" else None, log_every=1)
    model = run.wrap(nn.Linear(1, 1))
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=2)
    optimizer = lbfgs if way == "closure" else torch.optim.SGD(model.parameters(), lr=0.1)
    weights = torch.zeros(12)
    weights[3] = 2.0
    skipped = []

    def backward(batch: list[Tensor]) -> float:
        optimizer.zero_grad()
        own = float(batch[1].sum())
        losses = model(batch[0]).square()[:, 0]
        run.backward((losses * batch[1]).sum() / (own or 1.0), own)
        return run.mean(losses.mean())

    for _ in run.epochs(1):
        for batch in run.batches(TensorDataset(torch.arange(12.0)[:, None], weights), 4):
            if way in ("by hand", "closure"):
                closure = (lambda batch=batch: backward(batch)) if way == "closure" else None
                backward(batch) if closure is None else None
                result = run.apply(optimizer, closure=closure)
            else:
                loss = lambda b: ((model(b[0]).square()[:, 0] * b[1]).sum(), b[1].sum())  # noqa: E731
                result = run.step(loss, batch, optimizer)
            skipped.append(result.skipped)
    with pytest.raises(train.UserError, match="weights of loss sum to 0 over the dataset, so there is no mean"):
        run.evaluate(lambda b: {"loss": (0.0, 0)}, TensorDataset(torch.ones(3, 1)), 2)
    with pytest.warns(match="weights of precision sum to 0") if run.rank == 0 else nullcontext():
        found = run.evaluate(lambda b: {"one": 1.0, "precision": (0.0, 0)}, TensorDataset(torch.ones(3, 1)), 2)
    assert found["one"] == 1 and math.isnan(found["precision"])
    return [float(each) for each in model.state_dict().values()], skipped


@pytest.mark.parametrize("way", ["fast", "exact", "by hand", "closure"])
def test_a_batch_whose_weights_sum_to_0_is_skipped_by_all_ranks(way: str, tmp_path: Path) -> None:
    """The loop does not end, the record says why, and the other batch trains as on one process."""
    (weights, skipped), other = launched(2, _trained, tmp_path, way)
    assert (weights, skipped) == other and skipped.count(_NOTHING) == 2 and len(skipped) == 3
    texts = [record["text"] for record in records(tmp_path, "incident")]
    assert texts == [f"skipped by all ranks, because {_NOTHING}"] * 2
    assert weights == pytest.approx(launched(1, _trained, None, way)[0][0], rel=1e-5)


def _without_label(folder: Path) -> list[float]:
    """Train and evaluate 5 samples, of which the first, with which a rank without samples computes, has no label."""
    run = Run(seed=1, run_dir=folder)
    model = run.wrap(nn.Linear(1, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = TensorDataset(torch.arange(5.0)[:, None], torch.tensor([-100, 1, 1, 1, 1]))

    def loss(batch: list[Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    means = list[float]()
    for _ in run.epochs(1):
        for batch in run.batches(dataset, 4):
            run.step(loss, batch, optimizer)
        means += run.evaluate(lambda b: {"loss": loss(b)}, dataset, 4).values()
    return means


def test_a_mean_of_no_labels_is_reported_and_counts_nowhere(tmp_path: Path) -> None:
    first, second = launched(2, _without_label, tmp_path)
    assert first == second and 0.0 < first[0] < 10.0
    (incident,), (epoch,) = records(tmp_path, "incident"), records(tmp_path, "epoch")
    assert incident["step"] == 2
    assert incident["text"].startswith("the loss is nan and its gradient finite: a mean of no labels?")
    assert epoch["samples"] == 4 and 0.0 < epoch["train_loss"] < 10.0


_OF_STEP: dict[str, Callable[[Tensor], Any]] = {
    "None (is a `return` missing?) for 2": lambda y: None,
    "a float without a graph (after .item(),": lambda y: y.mean().item(),
    "a tensor of shape () without a graph": lambda y: y.mean().detach(),
    "a dict, not a tensor, for 2 samples": lambda y: {"loss": y.mean()},
    "(a tensor of shape (), None) for 2 samples": lambda y: (y.sum(), None),
    "(a tensor of shape (2, 1), an int) for 2 samples": lambda y: (y, 2),
}
_OF_EVALUATE: dict[str, Callable[[Tensor], Any]] = {
    "a tensor of shape (2, 1): return a dict": lambda y: y,
    "a str as loss for 2 samples": lambda y: {"loss": "low"},
    "None as loss for 2 samples": lambda y: {"loss": None},
}
_OF_BACKWARD: dict[str, Callable[[Tensor], Any]] = {
    "a float without a graph (after .item(),": lambda y: y.mean().item(),
    "a tensor of shape (2, 1): give the mean": lambda y: y,
}


def _said() -> list[str]:
    run, dataset = Run(seed=1), TensorDataset(torch.ones(4, 1))
    model = run.wrap(nn.Linear(1, 1))
    optimizer, said = torch.optim.SGD(model.parameters(), lr=0.1), list[str]()

    def note(call: Callable[..., Any], *args: Any, **options: Any) -> None:
        with pytest.raises(train.UserError) as raised:
            call(*args, **options)
        said.append(str(raised.value))

    note(run.restore, model=model, count=5)
    note(run.batches, TensorDataset(torch.ones(0, 1)), 2)
    note(run.batches, dataset, 2, micro_batches=0)
    note(run.evaluate, lambda b: {}, dataset, 2, workers=-1)
    note(next, run.epochs(0))
    note(list, run.batches(dataset, 2))
    for _ in run.epochs(1):
        for (x,) in run.batches(dataset, 2):
            for slip in _OF_STEP.values():
                note(run.step, lambda part, slip=slip: slip(model(part)), x, optimizer)
            for slip in _OF_EVALUATE.values():
                note(run.evaluate, lambda part, slip=slip: slip(model(part[0])), dataset, 2)
            for slip in _OF_BACKWARD.values():
                note(run.backward, slip(model(x)))
            break
        note(list, run.batches(dataset, 2))
        break
    return said


def test_each_slip_is_a_sentence_that_says_what_to_do() -> None:
    restore, empty, size, workers, epochs, outside, *of_functions, unused = launched(1, _said)[0]
    assert restore.startswith("run.restore(): count is an int without state_dict() and load_state_dict(): give a model")
    assert empty == "the dataset, a TensorDataset, has 0 samples: there is nothing to read"
    assert size == "run.batches(): micro_batches is 0: give a whole number of at least 1"
    assert workers == "run.evaluate(): workers is -1: give a whole number of at least 0"
    assert epochs == "run.epochs(): number is 0: give a whole number of at least 1"
    assert unused == "no batch of epoch 1 reached run.step() or run.apply(): nothing was trained"
    assert outside.startswith("run.batches() belongs into the loop over run.epochs()")
    slips = [*_OF_STEP, *_OF_EVALUATE, *_OF_BACKWARD]
    for slip, said in zip(slips, of_functions, strict=True):
        assert slip in said, said
    wanted = [_WANTED.format("loss"), "return a dict", *[_WANTED.format("value")] * 2]
    assert all(end in said for end, said in zip(wanted, of_functions[len(_OF_STEP) - 1 :], strict=False))


def _left_out(folder: Path, settings: dict[str, Any]) -> tuple[float, int]:
    """Train 12 samples in batches of 4; of the second, collate keeps the last sample alone, that of the last rank."""
    run, bad = Run(seed=1, run_dir=folder, **settings), epoch_order(12, 1, 1)[4:7]
    model, given = run.wrap(nn.Linear(1, 1)), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def kept(samples: list[tuple[Tensor]], bad: list[int] = bad) -> Tensor | None:
        return torch.stack(left) if (left := [x for (x,) in samples if int(x) not in bad]) else None

    dataset = TensorDataset(torch.arange(12.0)[:, None])
    for _ in run.epochs(1):
        for batch in run.batches(dataset, 4, collate=kept):
            given += 1
            run.step(lambda x: (model(x).sum(), len(x)), batch, optimizer)
    mean = run.evaluate(lambda x: {"mean": x.mean()}, dataset, 4, collate=lambda samples: kept(samples, [0, 1, 2, 3]))
    return mean["mean"], given


def test_a_batch_of_which_collate_leaves_nothing_on_a_rank_is_skipped_by_all_and_evaluates_to_nothing(
    tmp_path: Path,
) -> None:
    bad = ", ".join(map(str, epoch_order(12, 1, 1)[4:6]))
    assert launched(2, _left_out, tmp_path / "two", {}) == [(7.5, 2)] * 2
    (incident,) = records(tmp_path / "two", "incident")
    assert incident["text"] == f"skipped by all ranks, because rank 0: collate returned None for samples {bad}"
    assert [step["step"] for step in records(tmp_path / "two", "step")] == [1, 3]
    assert launched(1, _left_out, tmp_path / "one", {}) == [(7.5, 3)]
    for num, settings in ((2, {"logical_world": 4}), (1, {"strategy": "fsdp"})):
        with pytest.raises(RuntimeError, match=r"collate returned None for samples .* with a weight of 0 each"):
            launched(num, _left_out, tmp_path / str(num), settings)


class _Long(IterableDataset[Tensor]):
    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.ones(5, 1))


def _different(kind: str) -> str:
    run = Run(seed=1)
    model = run.wrap(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = _Long() if kind == "long" else [torch.ones(1)] * (4 + run.rank)
    with redirect_stderr(StringIO()) as said:
        try:
            for _ in run.epochs(1):
                for batch in run.batches(dataset, 2):
                    run.step(lambda part: model(part).mean(), batch, optimizer)
        except train.UserError as error:
            return str(error)
    return said.getvalue()


def test_samples_that_only_one_rank_has_or_that_no_rank_reads_are_reported() -> None:
    unlike = "the numbers of samples differ: 4 on rank 0; 5 on rank 1: each rank gets the whole dataset"
    assert all(said.startswith(unlike) for said in launched(2, _different, "ranks"))
    warning = "warning: the stream goes on after the 4 samples that its len() promises; they alone are read\n"
    assert launched(2, _different, "long") == ["", warning]
