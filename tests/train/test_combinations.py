"""docs/combinations.md says what the code does."""

from __future__ import annotations

import pytest

from tests.train.combinations import CELLS, PAGE, Cell, outcomes, page, read

# Of each strategy one cell that is trained or refused at start.
_CHECKED = [cell for cell in CELLS if cell.precision == "fp32" and cell.accumulate == 4 and not cell.compiled] + [
    Cell("custom_ddp", "bf16", 4, compiled=True),
    Cell("ddp", "fp32", 1, compiled=True),
    Cell("fsdp", "fp32", 1, compiled=True),
    Cell("custom_ddp", "bf16", 1),
    Cell("ddp", "tf32", 1),
    Cell("fsdp", "fp16", 1),
    Cell("fsdp", "bf16", 4),
    Cell("pipeline", "fp32", 1),
    Cell("pipeline", "fp16", 4),
]


def test_the_page_has_every_cell_and_is_written_by_its_script() -> None:
    written = PAGE.read_text()
    assert set(read(written)) == set(CELLS)
    assert page(read(written)) == written


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_cells_work_or_are_refused_as_the_page_says() -> None:
    written = read(PAGE.read_text())
    assert outcomes(_CHECKED) == {cell: written[cell] for cell in _CHECKED}
