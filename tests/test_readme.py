"""The README's commands work, and its tree and links are there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
# `make test` is this very run, and `make demo` is the same job as the pipe into bash.
_NOT_RUN = {"make test", "make demo"}


def commands() -> list[str]:
    """The lines of the README's sh blocks; what is in text blocks needs a cluster or has a gap to fill in."""
    blocks = re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def _marked(command: str) -> Any:
    """The command as a parameter of a test; a slow one if it trains or renders in a pipe into bash."""
    return pytest.param(command, marks=pytest.mark.slow if re.search(r"-m train |bash$", command) else ())


@pytest.mark.timeout(180)
@pytest.mark.parametrize("command", [_marked(command) for command in commands() if command not in _NOT_RUN])
def test_command_of_the_readme_works(command: str, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = command.replace("/tmp/", f"{tmp_path}/")
    outcome = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=170
    )
    assert outcome.returncode == 0, outcome.stderr


def test_the_commands_that_are_not_run_are_in_the_readme() -> None:
    assert set(commands()) >= _NOT_RUN


def test_make_help_says_in_a_line_what_each_target_does() -> None:
    (targets,) = re.findall(r"^\.PHONY: help (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    shown = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert sorted(line.split()[0] for line in shown.splitlines()) == sorted(targets.split())
    assert {command.removeprefix("make ") for command in _NOT_RUN} <= set(targets.split())
    assert len(targets.split()) <= 10


@pytest.mark.parametrize("target", ["slurm", "jobset"])
def test_the_lines_shown_of_an_artifact_are_rendered_from_the_spec_shown(target: str, tmp_path: Path) -> None:
    spec, *excerpts = re.findall(r"^```(?:yaml|bash)\n(.*?)^```", README.partition("## Use it by task")[0], re.M | re.S)
    (tmp_path / "hello.yaml").write_text(spec)
    command = [sys.executable, "render.py", target, str(tmp_path / "hello.yaml")]
    rendered = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    excerpt = excerpts[["slurm", "jobset"].index(target)].splitlines()
    remaining = iter(rendered)
    # `in` takes lines from the iterator, so this also checks their order.
    assert [line for line in excerpt if line not in remaining] == []
    assert spec.count("\n") == 10


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{file.name}" for file in (ROOT / "docs").glob("*.md"))])
def test_links_lead_to_files(page: str) -> None:
    file = ROOT / page
    for link in re.findall(r"\]\(([^)#:]+)\)", file.read_text()):
        assert (file.parent / link).exists(), link


def tree() -> list[str]:
    """The names in the README's tree, each from the repository's root."""
    (lines,) = re.findall(r"^## What is where\n.*?^```text\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    names, folder = [], ""
    for line in lines.splitlines():
        name = line.split()[0]
        if not line.startswith(" "):
            folder = name if name.endswith("/") else ""
            names.append(name)
        else:
            names.append(folder + name)
    return names


def test_every_path_in_the_readme_exists() -> None:
    paths = re.findall(r"`([a-z0-9_]+(?:/[a-z0-9_.]+)+)`", README)
    assert [name for name in [*tree(), *paths] if not (ROOT / name).exists()] == []


def test_the_tree_names_every_room() -> None:
    rooms = {
        f"{file.parent.relative_to(ROOT)}/"
        for name in ("jobspec", "lint", "train", "benchmarks")
        for file in (ROOT / name).rglob("__init__.py")
    }
    assert rooms - set(tree()) == set()


def test_the_readme_shows_every_command_of_render_py() -> None:
    shown = subprocess.run(
        [sys.executable, "render.py", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    commands_of_render = re.findall(r"^    ([a-z]+)\b", shown.stdout, re.MULTILINE)
    assert {"slurm", "explain", "lint"} < set(commands_of_render)
    assert [name for name in commands_of_render if not re.search(rf"\b{name}\b", README)] == []
