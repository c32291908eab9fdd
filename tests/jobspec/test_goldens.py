"""Every job for every target, byte for byte: the artifact, or why there is none.

`pytest --update` writes the files anew.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from jobspec import targets
from jobspec.artifact import render
from jobspec.problems import SpecError

ROOT = Path(__file__).parents[2]
GOLDENS = ROOT / "tests" / "goldens"
JOBS = sorted((ROOT / "jobs").glob("*.yaml"))

each_job_and_target = pytest.mark.parametrize(
    ("job", "target"),
    [(job, target) for job in JOBS for target in targets.names()],
    ids=lambda value: value.stem if isinstance(value, Path) else value,
)


@each_job_and_target
def test_artifact_matches_golden(
    job: Path, target: str, golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(job.parent)
    suffix = Path(targets.template(target)).suffixes[0]
    try:
        golden(GOLDENS / f"{job.stem}.{target}{suffix}", render(target, job.name))
    except SpecError as error:
        golden(GOLDENS / f"{job.stem}.{target}.refused", f"{error}\n")


def test_no_golden_is_left_over() -> None:
    made_from = sorted(tuple(file.name.split(".")[:2]) for file in GOLDENS.iterdir())
    assert made_from == sorted((job.stem, target) for job in JOBS for target in targets.names())


@pytest.mark.parametrize("script", sorted(GOLDENS.glob("*.sh")), ids=lambda file: file.name)
def test_scripts_pass_bash_and_shellcheck(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed (Debian package shellcheck)")
    subprocess.run(["shellcheck", "--severity=warning", script], check=True)
