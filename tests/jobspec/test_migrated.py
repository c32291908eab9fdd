"""Public jobs rewritten as job and site, byte for byte; docs/migrate.md compares each with its source.

`site.TARGET.yaml` names the target, and the rendered file beside it is `TARGET.sh` or `TARGET.yaml`.
`pytest --update` writes the rendered files anew.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from jobspec import targets
from jobspec.artifact import render
from jobspec.problems import report
from lint import lint

ROOT = Path(__file__).parents[2]
MIGRATED = ROOT / "tests" / "migrated"
FOLDERS = sorted(path for path in MIGRATED.iterdir() if path.is_dir())
SITES = sorted(MIGRATED.glob("*/site.*.yaml"))

each_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
each_site = pytest.mark.parametrize("site", SITES, ids=lambda site: f"{site.parent.name}-{target_of(site)}")


def target_of(site: Path) -> str:
    return site.name.split(".")[1]


def rendered(site: Path) -> Path:
    """The file beside a site that holds what is rendered from it."""
    target = target_of(site)
    return site.parent / f"{target}{Path(targets.template(target)).suffixes[0]}"


@each_site
def test_migrated_job_matches_golden(
    site: Path, golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(site.parent)
    golden(rendered(site), render(target_of(site), ["job.yaml", site.name]))


@each_site
def test_rendered_file_has_no_fault(site: Path) -> None:
    assert report(lint([str(rendered(site))]), "") == "0 problems"


@pytest.mark.parametrize("script", sorted(MIGRATED.glob("*/*.sh")), ids=lambda script: script.parent.name)
def test_script_passes_bash_and_shellcheck(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed (Debian package shellcheck)")
    subprocess.run(["shellcheck", "--severity=warning", script], check=True)


@each_folder
def test_folder_holds_a_job_its_sites_and_what_is_rendered(folder: Path) -> None:
    sites = [site for site in SITES if site.parent == folder]
    assert sites
    expected = {"job.yaml", *(site.name for site in sites), *(rendered(site).name for site in sites)}
    assert {file.name for file in folder.iterdir()} == expected


@each_folder
def test_source_stands_in_the_first_line_and_in_the_docs(folder: Path) -> None:
    first = {file.read_text().splitlines()[0] for file in [folder / "job.yaml", *folder.glob("site.*.yaml")]}
    assert len(first) == 1
    source = re.fullmatch(r"# Source: (github\.com/[^/, ]+/[^/, ]+), ([^, ]+), ([0-9a-f]{7})", first.pop())
    assert source
    repository, path, commit = source.groups()
    text = (ROOT / "docs" / "migrate.md").read_text()
    assert f"(https://{repository}/blob/{commit}/{path})" in text
    assert f"`tests/migrated/{folder.name}`" in text
