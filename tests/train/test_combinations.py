"""docs/reference/combinations.md says what the code does."""

import pytest

from tests.train.combinations import CELLS, PAGE, outcomes, page, read
from train.config import available


def test_the_page_has_every_cell_and_is_written_by_its_script() -> None:
    written = PAGE.read_text()
    assert set(read(written)) == set(CELLS)
    assert page(read(written)) == written


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("strategy", available("strategies"))
def test_cells_of_a_strategy_work_or_are_refused_as_the_page_says(strategy: str, compiled: bool) -> None:
    cells = [cell for cell in CELLS if (cell.strategy, cell.compiled) == (strategy, compiled)]
    written = read(PAGE.read_text())
    assert outcomes(cells) == {cell: written[cell] for cell in cells}
