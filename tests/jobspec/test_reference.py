"""docs/reference/ is up to date and leaves nothing out."""

import re
from contextlib import suppress
from pathlib import Path

from docs.make_reference import pages
from jobspec import targets
from jobspec.artifact import plans_of, read
from jobspec.problems import SpecError
from jobspec.spec.job import Job
from tests.jobspec.test_uses import keys
from train.config import TrainConfig, flag

ROOT = Path(__file__).parents[2]


def rows(page: str) -> dict[str, list[str]]:
    """The cells of each row of a page by the row's first word."""
    lines = re.split(r"^---.*\n", (ROOT / "docs" / "reference" / page).read_text(), maxsplit=1, flags=re.M)[1]
    cells = [re.split(r"(?<!\\) \| ?", line) for line in lines.splitlines() if " | " in line]
    return {re.match("`([^`]+)`", first)[1]: [first, *others] for first, *others in cells}  # type: ignore[index]


def test_pages_are_those_of_the_models() -> None:
    stale = [name for name, text in pages().items() if (ROOT / "docs" / "reference" / name).read_text() != text]
    assert stale == [], "make render"


def test_every_key_of_a_spec_is_there_with_meaning_and_example() -> None:
    found = rows("keys.md")
    assert [key for key in keys(Job) if key not in found] == []
    assert [key for key, cells in found.items() if not (len(cells) == 6 and all(cells[i] for i in (1, 3, 4, 5)))] == []


def test_every_flag_of_train_is_there() -> None:
    assert set(rows("flags.md")) == {flag(key) for key in TrainConfig.model_fields}


def test_every_variable_that_a_target_sets_is_there_with_who_sets_it() -> None:
    found = rows("variables.md")
    missing = set()
    for spec in [*(ROOT / "tests" / "specs" / "ok").glob("*.yaml"), *(ROOT / "jobs").glob("*.yaml")]:
        for name in targets.names():
            target = targets.load(name)
            with suppress(SpecError):
                for plan in plans_of(read([str(spec)]), target)[:1]:
                    set_by = [one for rank in plan.ranks() for one in target.environment(plan, rank)]
                    ours = {
                        (one.name, one.set_by) for one in set_by if one.set_by != "spec" and one.value != "<secret>"
                    }
                    missing |= {one for one in ours if f"{one[1]}: " not in found.get(one[0], ["", ""])[1]}
    assert missing == set()
