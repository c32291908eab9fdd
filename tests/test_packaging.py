"""What `pip install .` puts into site-packages renders, without torch and without this checkout."""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from runpy import run_path
from typing import Any
from unittest import mock

import pytest

ROOT = Path(__file__).parent.parent

# Without torch and what else only training needs; `-I` hides this checkout.
RENDER_JOB = """
import sys
sys.path.insert(0, {site!r})
for name in ("torch", "torchvision", "numpy", "tqdm"):
    sys.modules[name] = None
from {module} import {function}
{function}()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages that setup.py names, each where an installation has it."""
    with mock.patch("setuptools.setup") as setup, pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        run_path(str(ROOT / "setup.py"))
    said: Mapping[str, Any] = setup.call_args.kwargs
    assert {package.partition(".")[0] for package in said["packages"]} == {"jobspec", "train"}
    assert not re.search(r"\]\((?!https?:)", said["long_description"]), "PyPI shows it without this checkout"
    site = tmp_path_factory.mktemp("site")
    for package in said["packages"]:
        source = ROOT / said["package_dir"].get(package, package.replace(".", "/"))
        target = site / package.replace(".", "/")
        target.mkdir(parents=True)
        for pattern in ["*.py", *said["package_data"].get(package, [])]:
            for file in source.glob(pattern):
                shutil.copy(file, target)
    return site


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["slurm", "job.yaml"], "#SBATCH"),
        (["jobset", "job.yaml"], "kind: JobSet"),
        (["explain", "job.yaml", "--target", "torchrun"], "quickstart on torchrun"),
        (["schema"], '"title": "job spec"'),
        (["--version"], "render-job "),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_every_command_works(words: list[str], part: str, site: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "jobs" / "quickstart.yaml", tmp_path / "job.yaml")
    entry = re.search(r'^render-job = "(.+):(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert entry
    code = RENDER_JOB.format(site=str(site), module=entry[1], function=entry[2])
    command = [sys.executable, "-I", "-c", code, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert part in done.stdout, done.stderr
