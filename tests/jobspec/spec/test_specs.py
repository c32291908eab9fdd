"""Specs as data: those in specs/ok are accepted, those in the tables of specs/wrong give exactly their messages.

`ok/NAME.yaml` is rendered for torchrun, `ok/NAME.TARGET.yaml` for that target; a case of a table has a cell `target`.
A `message` is what stands in each problem, a `report` all that is shown.  `pytest --update` writes both anew.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from jobspec import targets
from jobspec.artifact import plans_of, read
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
