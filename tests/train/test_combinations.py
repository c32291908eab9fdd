"""docs/combinations.md says what the code does."""

from __future__ import annotations

import pytest

from tests.train.combinations import CELLS, PAGE, Cell, outcomes, page, read
from train.config import available

_THREE_COMPILED = (
    Cell("custom_ddp", "bf16", 4, compiled=True),
    Cell("ddp", "fp32", 1, compiled=True),
    Cell("fsdp", "fp32", 1, compiled=True),
)


def test_the_page_has_every_cell_and_is_written_by_its_script() -> None:
    written = PAGE.read_text()
    assert set(read(written)) == set(CELLS)
    assert page(read(written)) == written


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("strategy", available("strategies"))
def test_cells_of_a_strategy_work_or_are_refused_as_the_page_says(strategy: str) -> None:
    _check([cell for cell in CELLS if cell.strategy == strategy and not cell.compiled])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_compiled_cells_work_or_are_refused_as_the_page_says() -> None:
    _check(list(_THREE_COMPILED))


# Each cell compiles for half a minute: `make e2e-compiled`.
@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("strategy", available("strategies"))
def test_compiled_cells_of_a_strategy_work_or_are_refused_as_the_page_says(strategy: str) -> None:
    _check([cell for cell in CELLS if cell.strategy == strategy and cell.compiled])


def _check(cells: list[Cell]) -> None:
    written = read(PAGE.read_text())
    assert outcomes(cells) == {cell: written[cell] for cell in cells}
