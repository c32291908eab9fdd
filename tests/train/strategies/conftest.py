"""Runs of the GPT on text, made once and compared by the tests of several strategies."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli import records
from tests.ranks import train_on_ranks
from train.datasets import tokens

PAGES = sorted((Path(__file__).parents[3] / "docs").glob("*.md"))[:2]
STEPS = 50


@pytest.fixture(scope="session")
def gpt_losses(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`gpt_losses(world_size, flags…)`: the loss of each of 50 steps; each run is made once."""
    made: dict[tuple[Any, ...], list[float]] = {}
    data_root = tmp_path_factory.mktemp("data")
    tokens.write(PAGES, data_root, context=16)

    def run(world_size: int, *flags: str) -> list[float]:
        key = (world_size, *flags)
        if key not in made:
            run_dir = tmp_path_factory.mktemp("run")
            data = ["--model=gpt", "--dataset=tokens", f"--data-root={data_root}", "--batch-size=8", "--epochs=9"]
            length = ["--lr=0.05", "--momentum=0.9", "--clip-norm=1", f"--max-steps={STEPS}", f"--run-dir={run_dir}"]
            train_on_ranks(world_size, *data, *length, *flags)
            made[key] = [record["loss"] for record in records(run_dir, "step")]
            assert len(made[key]) == STEPS
        return made[key]

    return run
