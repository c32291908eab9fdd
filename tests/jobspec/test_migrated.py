"""Public jobs rewritten as job and site.

`site.TARGET.yaml` names the target.
"""

import re
from pathlib import Path

import pytest

from jobspec import targets
from jobspec.artifact import render
from jobspec.problems import report
from lint import lint
from tests.shell import passes_bash_and_shellcheck

ROOT = Path(__file__).parents[2]
MIGRATED = ROOT / "tests" / "migrated"
FOLDERS = sorted(path for path in MIGRATED.iterdir() if path.is_dir())
SITES = sorted(MIGRATED.glob("*/site.*.yaml"))


def target_of(site: Path) -> str:
    return site.name.split(".")[1]


@pytest.mark.parametrize("site", SITES, ids=lambda site: f"{site.parent.name}-{target_of(site)}")
def test_rendered_file_has_no_fault(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(site.parent)
    target = target_of(site)
    file = tmp_path / f"{target}{Path(targets.template(target)).suffixes[0]}"
    file.write_text(render(target, ["job.yaml", site.name]))
    assert report(lint([str(file)]), "") == "0 problems"
    if file.suffix == ".sh":
        passes_bash_and_shellcheck(file)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_folder_holds_a_job_and_its_sites_which_all_name_their_source_in_the_first_line(folder: Path) -> None:
    sites = [site.name for site in SITES if site.parent == folder]
    assert sites
    assert sorted(file.name for file in folder.iterdir()) == ["job.yaml", *sites]
    first = {file.read_text().splitlines()[0] for file in folder.iterdir()}
    assert len(first) == 1
    assert re.fullmatch(r"# Source: github\.com/[^/, ]+/[^/, ]+, [^, ]+, [0-9a-f]{7}", first.pop())
