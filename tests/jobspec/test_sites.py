"""Each file in sites/ goes with the jobs in jobs/, and everything in it reaches the artifact."""

import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobspec import targets
from jobspec.artifact import load, render
from jobspec.problems import SpecError

ROOT = Path(__file__).parents[2]
SITES = sorted((ROOT / "sites").glob("*.yaml"))
JOBS = sorted((ROOT / "jobs").glob("*.yaml"))

each_site = pytest.mark.parametrize("site", SITES, ids=lambda site: site.stem)


def commands(site: Path) -> list[tuple[str, list[str], list[str]]]:
    """Target, files and `--set` options of each command in the comments of a site."""
    found = []
    for line in site.read_text().splitlines():
        if line.startswith("#   render-job "):
            _, target, *words = shlex.split(line.removeprefix("#"))
            files = [word for word in words if word.endswith(".yaml")]
            found.append((target, files, [word for word in words if "=" in word]))
    return found


def leaves(value: Any) -> Iterator[list[str]]:
    """The keys that lead to each value of a mapping that is none itself."""
    for key, inside in value.items():
        below = leaves(inside) if isinstance(inside, dict) else [[]]
        yield from ([key, *path] for path in below)


def without(values: dict[str, Any], path: list[str]) -> dict[str, Any]:
    key, *below = path
    rest = {other: value for other, value in values.items() if other != key}
    return {**rest, key: without(values[key], below)} if below else rest


@each_site
def test_a_site_has_commands_and_sources(site: Path) -> None:
    assert commands(site)
    assert all(str(site.relative_to(ROOT)) in files for _, files, _ in commands(site))
    assert "# Source: " in site.read_text()


@each_site
def test_commands_of_a_site_render_and_leave_nothing_out(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for target, files, settings in commands(site):
        assert "# Not used here: " not in render(target, files, settings)


@each_site
def test_every_value_of_a_site_changes_the_artifact(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    values = yaml.safe_load(site.read_text())
    changed = tmp_path / site.name
    for target, files, settings in commands(site):
        whole = render(target, files, settings)
        files = [str(changed) if Path(file).name == site.name else file for file in files]
        for path in leaves(values):
            changed.write_text(yaml.safe_dump(without(values, path)))
            with suppress(SpecError):  # what is left may need the value
                assert render(target, files, settings) != whole, path


@each_site
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_a_site_adds_no_mistake_to_any_job(site: Path, job: Path) -> None:
    for target in {target for target, _, _ in commands(site)}:
        try:
            load(targets.load(target), [str(job), str(site)])
        except SpecError as error:
            assert {problem.place.name for problem in error.problems} == {str(job)}
