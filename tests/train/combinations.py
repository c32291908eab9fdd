"""What each strategy does with each precision, accumulation and --compile: makes docs/reference/combinations.md.

    python -m tests.train.combinations      # writes the page; five minutes on two cores

Each cell trains 30 steps and is compared with one process on the whole batch, or must be refused at start.  The model
has BatchNorm, and then the one process accumulates, too; a pipeline and --compile refuse a synchronised one, so theirs
has none.  A cell that does neither is an error, and no page is written.  So is a cell with the losses of fp32 in place
of bf16 or fp16, and a compiled cell that has compiled nothing.
"""

from __future__ import annotations

import itertools
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters

from tests.cli import records
from tests.idx import write_small_mnist
from tests.ranks import run_ranks
from train import models
from train.config import TrainConfig, available
from train.errors import UserError
from train.flags import from_argv
from train.loop.numerics import set_numerics
from train.trainer import Trainer
from train.world.environment import World
from train.world.process import Process

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "combinations.md"
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
ACCUMULATE = (1, 4)
STEPS = 30
# Of the losses: types of few digits round differently; at a higher rate than this one's the training amplifies it.
_TOLERANCE = {"fp32": 1e-4, "bf16": 0.03, "fp16": 0.03}
_ONE_PROCESS = ("single", "data_parallel")


class Cell(NamedTuple):
    """One combination."""

    strategy: str
    precision: str
    accumulate: int
    compiled: bool = False

    @property
    def world_size(self) -> int:
        return 1 if self.strategy in _ONE_PROCESS else 2

    @property
    def model(self) -> str:
        return "mlp" if self.strategy == "pipeline" or self.compiled else "mnist_bn"

    def reference(self, precision: str) -> tuple[Cell, str]:
        return Cell("single", precision, 1 if self.model == "mlp" else self.accumulate), self.model

    def flags(self) -> list[str]:
        flags = [f"--strategy={self.strategy}", f"--precision={self.precision}", f"--accumulate={self.accumulate}"]
        return [*flags, *(["--compile"] if self.compiled else [])]


COLUMNS = list(itertools.product((False, True), ACCUMULATE))
CELLS = [
    Cell(strategy, precision, number, compiled)
    for strategy, precision, (compiled, number) in itertools.product(available("strategies"), PRECISIONS, COLUMNS)
]


def outcomes(cells: Iterable[Cell]) -> dict[Cell, str | None]:
    """Return for each cell None if it works, or the reason for which it is refused.

    Raises AssertionError if the losses of a cell differ from those of one process, or equal those of another precision.
    """
    cells = list(cells)
    found: dict[Cell, str | None] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_small_mnist(Path(folder), 1_003, 50)
        references = {cell.reference(precision) for cell in cells for precision in ("fp32", cell.precision)}
        losses: dict[tuple[Cell, str], list[float] | str] = {}
        for world_size in (1, 2):
            pairs = {*((cell, cell.model) for cell in cells), *references}
            chosen = sorted(pair for pair in pairs if pair[0].world_size == world_size)
            losses |= run_ranks(world_size, _train_each, chosen, folder, timeout_s=3600.0)[0]
    for cell in cells:
        ours, expected = losses[cell, cell.model], losses[cell.reference(cell.precision)]
        found[cell] = ours if isinstance(ours, str) else None
        if found[cell] is None:
            assert len(ours) == STEPS and not isinstance(expected, str), cell
            assert ours == pytest.approx(expected, rel=_TOLERANCE[cell.precision]), f"{cell}: other losses"
            if cell.precision != "fp32":
                fp32 = pytest.approx(losses[cell.reference("fp32")], rel=_TOLERANCE["fp32"])
                assert ours != fp32, f"{cell}: the losses of fp32"
    return found


def _build(name: str, *_: object) -> nn.Module:
    """The MLP of train/models/, smaller and, under the other name, with BatchNorm."""
    norm = nn.BatchNorm1d(32) if name == "mnist_bn" else nn.Identity()
    first, second = nn.Linear(784, 32, bias=False), nn.Linear(32, 32)
    return nn.Sequential(nn.Flatten(), first, norm, nn.ReLU(), second, nn.ReLU(), nn.Linear(32, 10))


def _train_each(
    world: World, chosen: Sequence[tuple[Cell, str]], folder: str
) -> dict[tuple[Cell, str], list[float] | str]:
    """Train all cells, one after the other, in processes that are connected already."""
    return {(cell, model): _train(world, cell, model, folder) for cell, model in chosen}


def _train(world: World, cell: Cell, model_name: str, folder: str) -> list[float] | str:
    run_dir = Path(tempfile.mkdtemp()) if world.rank == 0 else Path("unused")
    torch._dynamo.reset()  # it compiles one function for a few models only
    counters.clear()
    model = [f"--model={model_name}", "--dataset=mnist", f"--data-root={folder}", "--batch-size=64", "--lr=0.035"]
    length = ["--epochs=9", f"--max-steps={STEPS}", f"--run-dir={run_dir}", "--device=cpu"]
    try:
        config: TrainConfig = from_argv([*model, *length, *cell.flags()])
        set_numerics(config)
        with mock.patch.object(models, "build", _build):
            trainer = Trainer(config, Process(world))
        trainer.fit()
        assert bool(counters["stats"]["unique_graphs"]) == cell.compiled, f"{cell}: compiled {dict(counters['stats'])}"
    except UserError as error:
        return str(error).splitlines()[-1].strip()
    return [record["loss"] for record in records(run_dir, "step")] if world.rank == 0 else []


def page(found: dict[Cell, str | None]) -> str:
    """Return docs/reference/combinations.md."""
    reasons = sorted({reason for reason in found.values() if reason is not None})
    heads = [f"{'compiled, ' if compiled else ''}accumulate {number}" for compiled, number in COLUMNS]
    rows = [f"| strategy | precision | {' | '.join(heads)} |", "|---|---|" + "---|" * len(heads)]
    for strategy, precision in itertools.product(available("strategies"), PRECISIONS):
        cells = [found[Cell(strategy, precision, number, compiled)] for compiled, number in COLUMNS]
        words = ["works" if reason is None else f"refused [{1 + reasons.index(reason)}]" for reason in cells]
        rows.append(f"| {strategy} | {precision} | {' | '.join(words)} |")
    numbered = [f"{number}. {reason}" for number, reason in enumerate(reasons, start=1)]
    return "\n".join([_HEAD, *rows, "", "## Reasons", "", *numbered, ""])


_HEAD = f"""# Which settings work together

`python -m tests.train.combinations` runs every combination on a CPU and writes this page.
`tests/train/test_combinations.py` checks the page.

- **works**: the losses of {STEPS} steps equal the losses of one process that trains on the whole batch. The largest
  relative difference allowed is {_TOLERANCE["fp32"]:g} in fp32, and {_TOLERANCE["bf16"]:g} in bf16 and fp16. The
  model is a small MLP with BatchNorm (in a pipeline and compiled without: both refuse a synchronised one), and the data
  have the format of MNIST. The strategies `single` and `data_parallel` run in one process, all others in two.
- **refused [N]**: the run ends before its first step. The reason with the number N is below the table.

"accumulate 4" means `--accumulate 4`, and "compiled" means `--compile`.

On several GPUs data_parallel with `--compile` is refused, too, because all copies of the model would use the first
GPU's weights.

A run has only one `--strategy`. Because fsdp and pipeline are both strategies, no run can combine them.
"""


def read(text: str) -> dict[Cell, str | None]:
    """Return what a page says, as outcomes() does."""
    reasons = dict(re.findall(r"^(\d+)\. (.*)$", text, re.MULTILINE))
    found: dict[Cell, str | None] = {}
    row = rf"^\| (\w+) \| ({'|'.join(PRECISIONS)}) \| (.*) \|$"
    for strategy, precision, words in re.findall(row, text, re.MULTILINE):
        for (compiled, number), word in zip(COLUMNS, words.split(" | "), strict=True):
            refused = re.fullmatch(r"refused \[(\d+)\]", word)
            found[Cell(strategy, precision, number, compiled)] = reasons[refused[1]] if refused else None
    return found


if __name__ == "__main__":
    PAGE.write_text(page(outcomes(CELLS)))
    print(PAGE.name, "written", file=sys.stderr)
