"""Specs as data: those in specs/ok are accepted, those in specs/err give exactly the text beside them.

`name.yaml` is rendered for torchrun, `name.TARGET.yaml` for that target.  Each folder in specs/merged holds a job.yaml
and a site.yaml that give the message.out beside them, on Slurm.  `pytest --update` writes the .out
files anew.
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

SPECS = Path(__file__).parents[2] / "specs"


def target_of(spec: Path) -> targets.Target:
    _, *target = spec.stem.split(".")
    return targets.load(target[0] if target else "torchrun")


@pytest.mark.parametrize("spec", sorted((SPECS / "ok").glob("*.yaml")), ids=lambda spec: spec.stem)
def test_right_spec_is_accepted(spec: Path) -> None:
    plans_of(read(str(spec)), target_of(spec))


@pytest.mark.parametrize("spec", sorted((SPECS / "err").glob("*.yaml")), ids=lambda spec: spec.stem)
def test_wrong_spec_gives_exactly_its_message(
    spec: Path, golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(spec.parent)
    with pytest.raises(SpecError) as error:
        plans_of(read(spec.name), target_of(spec))
    golden(spec.with_suffix(".out"), f"{error.value}\n")


def test_every_message_belongs_to_a_spec() -> None:
    assert {file.stem for file in (SPECS / "err").glob("*.out")} == {
        file.stem for file in (SPECS / "err").glob("*.yaml")
    }


@pytest.mark.parametrize("folder", sorted((SPECS / "merged").iterdir()), ids=lambda folder: folder.name)
def test_mistake_in_merged_files_gives_exactly_its_message(
    folder: Path, golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(SpecError) as error:
        plans_of(read(["job.yaml", "site.yaml"]), targets.load("slurm"))
    golden(folder / "message.out", f"{error.value}\n")


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
