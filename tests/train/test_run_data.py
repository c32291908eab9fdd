"""One's own loop: what datasets, collate functions, buffers and schedulers may do between steps, epochs and starts."""

import os
import signal
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.cli import records, start_ranks
from tests.ranks import launched
from train.collectives.agreement import Stopped
from train.errors import SharedError, UserError
from train.run import Run


def _masked(samples: list[tuple[Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.cat([sample for (sample,) in samples]), torch.randint(0, 1000, (len(samples),))


def _masks(seed: int, workers: int) -> list[list[int]]:
    run, dataset = Run(seed=seed), TensorDataset(torch.arange(32).view(-1, 1))
    model = run.wrap(nn.Linear(1, 1))
    optimizer, masks = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in run.epochs(1):
        for batch in run.batches(dataset, 16, collate=_masked, workers=workers):
            masks.append(batch[1].tolist())
            run.step(lambda b: model(b[0].float()[:, None]).mean(), batch, optimizer)
    return masks


def test_collate_draws_by_seed_and_sample_with_workers_and_without() -> None:
    drawn = [launched(2, _masks, *how) for how in ((1, 0), (1, 1), (2, 0))]
    assert drawn[0] == drawn[1]
    assert len({str(mask) for of_ranks in drawn[1:] for masks in of_ranks for mask in masks}) == 8


class _Codebook(nn.Module):
    code: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.register_buffer("code", torch.zeros(4))

    def forward(self, x: Tensor) -> Any:
        y = self.norm(self.layer(x))
        self.code.lerp_(y.detach().mean(0), 0.5 * self.training)
        return y - self.code


def _code() -> list[float]:
    run = Run(seed=1)
    model = run.wrap(_Codebook())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = TensorDataset(torch.randn(32, 4, generator=torch.Generator().manual_seed(0)))
    for _ in run.epochs(1):
        for batch in run.batches(dataset, 8):
            run.step(lambda b: model(b[0]).square().mean(), batch, optimizer)
        run.evaluate(lambda b: {"loss": model(b[0]).mean()}, dataset, 8)
    return next(buffer.tolist() for name, buffer in model.named_buffers() if name.endswith("code"))


def test_buffers_beside_a_synchronised_batchnorm_are_those_of_rank_0() -> None:
    first, second = launched(2, _code)
    assert first == second != [0.0] * 4


def _rates(folder: Path, ending: str) -> list[float]:
    run, dataset = Run(seed=1, checkpoint_dir=folder, resume="auto"), TensorDataset(torch.ones(8, 1))
    rates = list[float]()
    model = run.wrap(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    run.restore(model=model, optimizer=optimizer, scheduler=scheduler, averaged=averaged)

    def measured(batch: Any) -> dict[str, Tensor]:
        if "signal" in ending:
            os.kill(os.getpid(), signal.SIGTERM)
        if ending == "error":
            raise LookupError("a metric")
        return {"loss": model(batch[0]).mean()}

    with suppress(Stopped, LookupError), run.loop.saved_after_failure():
        for epoch in run.epochs(4):
            rates.append(optimizer.param_groups[0]["lr"])
            for batch in run.batches(dataset, 4):
                run.step(lambda b: model(b[0]).square().mean(), batch, optimizer)
            scheduler.step()
            averaged.update_parameters(model)
            assert int(averaged.n_averaged) == epoch
            run.evaluate(measured, dataset, 4, stoppable=ending == "signal that stops the evaluation")
    return rates


def test_a_scheduler_that_steps_before_an_evaluation_that_is_cut_short_steps_once(tmp_path: Path) -> None:
    endings = ("signal", "error", "signal that stops the evaluation", "done")
    rates = [launched(1, _rates, tmp_path, ending)[0] for ending in endings]
    assert rates == [[1.0], [0.5], [0.5], [0.5, 0.25, 0.125]]


def _continued(folder: Path, named: bool, made_first: bool = True) -> list[str]:
    run = Run(seed=1, checkpoint_dir=folder, run_dir=folder, resume="auto")
    model = run.wrap(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) if made_first else None
    run.restore(model=model, optimizer=optimizer, **({"scheduler": scheduler} if named else {}))
    with suppress(SharedError):
        for _ in run.epochs(1):
            for batch in run.batches(TensorDataset(torch.ones(8, 1)), 4):
                run.step(lambda b: model(b[0]).square().mean(), batch, optimizer)
        return [record["kind"] for record in records(folder, "incident")]
    return ["refused"]


def test_a_restart_cannot_lose_a_scheduler_silently(tmp_path: Path) -> None:
    assert launched(1, _continued, tmp_path / "unnamed", False) == [["refused"]]
    assert launched(1, _continued, tmp_path, True) == [[]]
    assert launched(1, _continued, tmp_path, False, False) == [["not_restored", "already_ended"]]


def _compiled(folder: Path) -> list[str]:
    run, net = Run(seed=1, run_dir=folder), nn.Linear(1, 1)
    compiled: Any = torch.compile(net, backend="eager")
    model = run.wrap(compiled)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in run.epochs(1):
        for batch in run.batches(TensorDataset(torch.ones(8, 1)), 4, micro_batches=2):
            run.step(lambda b: model(b[0]).square().mean(), batch, optimizer)
    return [*run.engine.models[0].state_dict()]


def test_a_checkpoint_of_a_compiled_model_has_the_names_of_the_model_and_a_rank_that_never_trains_is_named(
    tmp_path: Path,
) -> None:
    assert launched(1, _compiled, tmp_path / "one") + launched(3, _compiled, tmp_path) == [["weight", "bias"]] * 4
    (incident,) = records(tmp_path, "incident")
    assert incident["text"].startswith("rank 2 gets no sample to train: a micro-batch has fewer")
    assert not records(tmp_path / "one", "incident")


def _in_memory() -> int:
    run = Run(seed=1)
    model = run.wrap(nn.Linear(1, 1))
    evaluated = list[weakref.ref[TensorDataset]]()
    for _ in range(20):
        dataset = TensorDataset(torch.ones(4, 1))
        evaluated.append(weakref.ref(dataset))
        run.evaluate(lambda batch: {"mean": model(batch[0]).mean()}, dataset, 2)
    return sum(reference() is not None for reference in evaluated)


def test_of_datasets_made_for_one_evaluation_each_the_newest_stay_in_memory() -> None:
    assert launched(1, _in_memory) == [8]


def _average_precision(scores: Tensor, labels: Tensor) -> float:
    hits = labels[scores.argsort(descending=True)].double()
    return float((hits * hits.cumsum(0) / torch.arange(1, len(hits) + 1)).sum() / hits.sum())


def _ranked(logical_world: int | None) -> dict[str, float]:
    run = Run(seed=1, logical_world=logical_world)
    model: Any = run.wrap(nn.Linear(2, 1, bias=False))
    points = torch.randn(37, 2, generator=torch.Generator().manual_seed(0))
    dataset = TensorDataset(torch.arange(37), points, (points[:, 0] + points[:, 1] > 0).long())
    with torch.no_grad():
        next(model.parameters()).copy_(torch.tensor([[1.0, 0.2]]))

    def outputs(batch: Any) -> dict[str, Any]:
        return {"at": batch[0].tolist(), "score": model(batch[1])[:, 0], "label": batch[2]}

    def metrics(rows: dict[str, Any]) -> dict[str, Any]:
        assert rows["at"] == [*range(37)]
        found = {"ap": _average_precision(rows["score"], rows["label"]), "rank": float(run.rank)}
        with suppress(ImportError):
            from torchmetrics.classification import BinaryAveragePrecision

            found["torchmetrics"] = BinaryAveragePrecision(sync_on_compute=False)(rows["score"], rows["label"])
        return found

    found = run.evaluate(outputs, dataset, 8, metrics=metrics)
    with pytest.raises(UserError, match=r"returned a tensor of shape \(\) as x for "):
        run.evaluate(lambda batch: {"x": torch.ones(())}, dataset, 16, metrics=metrics)
    with pytest.raises(UserError, match=r"returned a list of 1 as x for "):
        run.evaluate(lambda batch: {"x": [1]}, dataset, 16, metrics=metrics)
    return found


@pytest.mark.parametrize("logical_world", [None, 4])
def test_metrics_of_all_rows_are_those_of_one_process(logical_world: int | None) -> None:
    alone, *of_ranks = launched(1, _ranked, logical_world) + launched(3, _ranked, logical_world)
    assert of_ranks == [alone] * 3 and 0.5 < alone["ap"] < 1 and alone["rank"] == 0
    assert alone.get("torchmetrics", alone["ap"]) == pytest.approx(alone["ap"], rel=1e-5)  # where it is installed


_CHANGING = """
import torch
from train import Run

class Level(torch.utils.data.Dataset):
    level = 0
    def __len__(self): return 8
    def __getitem__(self, index): return torch.tensor([float(self.level)])

run, dataset = Run(seed=1, precision="bf16"), Level()
model = run.wrap(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in run.epochs(2):
    dataset.level = epoch
    for batch in run.batches(dataset, 4, workers=1):
        print("level", int(batch[0]), flush=True)
        run.backward(model(batch).mean())
        run.apply(optimizer)
        if epoch == 2: run.end(); break
"""


@pytest.mark.slow
def test_workers_read_the_dataset_of_the_epoch_and_end_with_the_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_CHANGING)
    (rank,) = start_ranks(1, program=(str(tmp_path / "program.py"),))
    said, errors = rank.communicate()
    assert (rank.returncode, [line[-1] for line in said.splitlines() if "level" in line]) == (0, ["1", "1", "2"]), (
        errors
    )
    assert errors.count("precision=bf16: a forward of your own is float32 outside of torch.autocast") == 1
