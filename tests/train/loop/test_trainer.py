"""The same losses on any number of processes; evaluation that counts each sample once; what a run writes."""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tests.cli import records
from tests.idx import write_small_mnist
from tests.ranks import run_ranks, train_on_ranks
from train import models
from train.collectives.agreement import StopAgreement
from train.config import TrainConfig
from train.data.batches import Batches
from train.data.sampler import evaluation_parts
from train.datasets._torchvision import TensorSamples
from train.loop.evaluation import evaluate
from train.loop.losses import correct, losses_of_samples
from train.strategies import Context
from train.world.environment import World
from train.world.signals import StopSignal

_CPU = torch.device("cpu")


class Case(NamedTuple):
    """A run whose losses must not depend on the number of processes."""

    model: str
    batch_size: int
    steps: int
    tolerance: float
    flags: tuple[str, ...] = ()


NUM_SAMPLES = 1_003
CASES = {
    # The last batch of an epoch has one sample: all ranks but one have none.
    "mlp": Case("mlp", 167, 50, 1e-4),
    # 35 samples in the last batch, 12, 12 and 11 in its micro-batches: of the last, 3, 3, 3 and 2.
    "mnist_bn in micro-batches": Case("mnist_bn", 88, 50, 1e-3, ("--accumulate=3",)),
    # Three samples in the last batch.  Their variance is so small that rounding grows fast: no steps after it.
    "mnist_bn with a rank without samples": Case("mnist_bn", 250, 5, 1e-3),
}


@pytest.fixture(scope="session")
def losses(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`losses(case, world_size, flags…)`: the loss of each step; each run is made once."""
    made: dict[tuple[Any, ...], list[float]] = {}
    data_root = tmp_path_factory.mktemp("data")
    write_small_mnist(data_root, NUM_SAMPLES, 50)

    def run(name: str, world_size: int, *flags: str) -> list[float]:
        key = (name, world_size, *flags)
        if key not in made:
            run_dir, case = tmp_path_factory.mktemp("run"), CASES[name]
            data = [f"--model={case.model}", "--dataset=mnist", f"--data-root={data_root}", "--dropout=0", "--lr=0.01"]
            length = [f"--batch-size={case.batch_size}", "--epochs=9", f"--max-steps={case.steps}"]
            train_on_ranks(world_size, *data, *length, f"--run-dir={run_dir}", *case.flags, *flags)
            made[key] = [record["loss"] for record in records(run_dir, "step")]
        return made[key]

    return run


def test_batchnorm_with_a_last_batch_of_one_sample_is_refused_at_the_start(tmp_path: Path) -> None:
    flags = ["--model=mnist_bn", "--batch-size=303", "--max-steps=1", f"--run-dir={tmp_path}"]
    with pytest.raises(RuntimeError, match="single sample, but step 34 of each epoch"):
        train_on_ranks(2, *flags)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("world_size", "strategy"),
    [
        (2, "custom_ddp"),
        pytest.param(4, "custom_ddp", marks=pytest.mark.slow),
        pytest.param(2, "ddp", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", CASES)
def test_the_loss_of_each_step_equals_one_process(losses: Any, name: str, world_size: int, strategy: str) -> None:
    expected = losses(name, 1)
    assert len(expected) == CASES[name].steps
    assert min(expected) < 0.9 * expected[0], "nothing was learned, so equal losses would mean little"
    assert losses(name, world_size, f"--strategy={strategy}") == pytest.approx(expected, rel=CASES[name].tolerance)


def _random_samples(length: int) -> TensorSamples:
    generator = torch.Generator().manual_seed(length)
    images = torch.randint(0, 256, (length, 1, 28, 28), generator=generator, dtype=torch.uint8)
    return TensorSamples(images, torch.randint(0, 10, (length,), generator=generator), (0.5,), (0.3,))


# Sizes of the validation set and batch sizes; some ranks have no samples at all.
_EVALUATIONS = [(1, 3), (7, 3), (7, 64), (9_999, 640), (9_999, 20_000)]


Batch = tuple[torch.Tensor, torch.Tensor]


def _measuring(model: nn.Module) -> Callable[[Batch], dict[str, torch.Tensor]]:
    def measure(batch: Batch) -> dict[str, torch.Tensor]:
        logits = model(batch[0])
        return {"loss": losses_of_samples(logits, batch[1]), "accuracy": correct(logits, batch[1])}

    return measure


def _evaluate(world: World) -> list[dict[str, float]]:
    context = Context(TrainConfig(), _CPU, None, world.world_size)
    results = []
    for size, batch_size in _EVALUATIONS:
        torch.manual_seed(0)
        model = models.build("mlp", (1, 28, 28), 10, None)
        steps, sizes = evaluation_parts(size, batch_size, world.rank, world.world_size, world.world_size)
        batches = zip(Batches(_random_samples(size), steps, _CPU), sizes, strict=False)
        results.append(evaluate(_measuring(model), batches, [model], context, StopAgreement(StopSignal())))
    return results


def _evaluate_plainly() -> list[dict[str, float]]:
    torch.manual_seed(0)
    model = models.build("mlp", (1, 28, 28), 10, None).eval()
    results = []
    for size, _ in _EVALUATIONS:
        samples = _random_samples(size)
        with torch.no_grad():
            logits = model((samples.images.float() / 255 - 0.5) / 0.3)
        losses = nn.functional.cross_entropy(logits, samples.labels, reduction="none").double()
        right = (logits.argmax(1) == samples.labels).double()
        results.append({"loss": float(losses.mean()), "accuracy": float(right.mean())})
    return results


@pytest.mark.parametrize("world_size", [2, 5], ids=lambda n: f"world={n}")
def test_evaluation_equals_one_process_on_the_whole_set(world_size: int) -> None:
    expected = _evaluate_plainly()
    for of_rank in run_ranks(world_size, _evaluate):
        for means, plain in zip(of_rank, expected, strict=True):
            assert means == pytest.approx(plain, rel=1e-5)


class _Calls(TorchFunctionMode):
    """Counts torch's functions and the methods of tensors by name, while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func.__name__] += 1
        return func(*args, **(kwargs or {}))


class _Never(StopAgreement):
    """Sends no messages."""

    def reached(self) -> bool:
        return False


def _calls_of_two_evaluations(world: World) -> list[Counter[str]]:
    """What an evaluation of one batch calls, and one of five."""
    context = Context(TrainConfig(), _CPU, None, world.world_size)
    model = models.build("mlp", (1, 28, 28), 10, None)
    batch = ((torch.zeros(2, 1, 28, 28), torch.zeros(2, dtype=torch.int64)), [2])
    found = []
    for num_batches in (1, 5):
        with _Calls() as calls:
            evaluate(_measuring(model), [batch] * num_batches, [model], context, _Never(StopSignal()))
        found.append(calls.names)
    return found


# What makes a host wait until a GPU has computed all that it was given: to read from it, or to send it a number.
_WAITS = {"new_tensor", "tensor", "as_tensor", "item", "tolist", "numpy", "cpu", "to", "nonzero"}
_WAITS |= {"__bool__", "__int__", "__float__", "__index__"}


def test_no_batch_of_an_evaluation_makes_the_host_wait() -> None:
    [(few, many)] = run_ranks(1, _calls_of_two_evaluations)
    assert many["argmax"] == 5 * few["argmax"] > 0
    assert {name: many[name] for name in _WAITS} == {name: few[name] for name in _WAITS}


def test_records_hold_world_arithmetic_steps_epochs_and_hash(tmp_path: Path) -> None:
    began = time.time()
    train_on_ranks(2, "--model=mlp", "--lr=0.1", "--batch-size=300", "--epochs=2", f"--run-dir={tmp_path}")
    (start,) = records(tmp_path, "start")
    assert start["world"]["world_size"] == 2
    assert start["config"]["batch_size"] == 300
    assert start["arithmetic"]["steps_per_epoch"] == 34
    assert start["versions"]["torch"] == torch.__version__
    assert len(bytes.fromhex(start["run_id"])) == 16
    assert [record["step"] for record in records(tmp_path, "step")] == [*range(1, 69)]
    epochs = records(tmp_path, "epoch")
    assert [record["epoch"] for record in epochs] == [1, 2]
    assert [record["samples"] for record in epochs] == [10_000, 10_000]
    first_epoch = [record for record in records(tmp_path, "step") if record["epoch"] == 1]
    weighted = sum(record["loss"] * record["samples"] for record in first_epoch) / 10_000
    assert epochs[0]["train_loss"] == pytest.approx(weighted)
    assert epochs[1]["val_accuracy"] > 0.95
    (end,) = records(tmp_path, "end")
    assert len(bytes.fromhex(end["weights_sha256"])) == 32
    everything = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    times = [began, *(record["time"] for record in everything), time.time()]
    assert times == sorted(times)
    seconds = sum(record["seconds_per_step"] for record in first_epoch)
    by_samples = sum(record["samples"] / record["samples_per_second"] for record in first_epoch)
    assert by_samples == pytest.approx(seconds, rel=0.01)
    assert 0 < seconds < epochs[0]["train_seconds"] + 0.01 <= epochs[0]["seconds"] + 0.01
