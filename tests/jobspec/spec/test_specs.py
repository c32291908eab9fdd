"""Specs as data: those in specs/ok are accepted, those in the tables of specs/wrong give exactly their messages.

`ok/NAME.yaml` is rendered for torchrun, `ok/NAME.TARGET.yaml` for that target; a case of a table has a cell `target`.
A `message` is what stands in each problem, a `report` all that is shown.  `pytest --update` writes both anew.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobspec import targets
from jobspec.artifact import plans_of, read, render
from jobspec.problems import SpecError
from tests.tables import Case, cases, in_short

SPECS = Path(__file__).parents[2] / "specs"


@pytest.mark.parametrize("spec", sorted((SPECS / "ok").glob("*.yaml")), ids=lambda spec: spec.stem)
def test_right_spec_is_accepted(spec: Path) -> None:
    _, *target = spec.stem.split(".")
    plans_of(read(str(spec)), targets.load(target[0] if target else "torchrun"))


@pytest.mark.parametrize("case", cases(SPECS / "wrong"), ids=str)
def test_wrong_spec_gives_exactly_its_message(
    case: Case, golden_cell: Callable[[Case, str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_bytes(case.spec.encode(errors="surrogateescape"))
    Path("site.yaml").write_text(case.cells.get("site", ""))
    files = ["job.yaml", "site.yaml"] if "site" in case.cells else ["job.yaml"]
    with pytest.raises(SpecError) as error:
        plans_of(read(files), targets.load(case.cells.get("target", "torchrun")))
    if "report" in case.cells:
        golden_cell(case, "report", str(error.value))
    else:
        golden_cell(case, "message", in_short(error.value.problems, case.spec))


EVERY_KEY = (SPECS / "ok" / "every-key.yaml").read_text()


@given(
    at=st.integers(0, len(EVERY_KEY)),
    length=st.integers(0, 30),
    new=st.text(max_size=10) | st.sampled_from(["0", "-1", "1e999", "~", "{}", "[]", "no", "'", "9" * 400, "\n"]),
)
def test_any_change_of_a_spec_is_rendered_or_refused_with_places(
    tmp_path_factory: pytest.TempPathFactory, at: int, length: int, new: str
) -> None:
    spec = tmp_path_factory.getbasetemp() / "changed.yaml"
    spec.write_text(EVERY_KEY[:at] + new + EVERY_KEY[at + length :], encoding="utf-8", newline="")
    try:
        render("torchrun", str(spec))
    except SpecError as error:
        assert error.problems
        assert all(problem.place.column >= 1 for problem in error.problems)
