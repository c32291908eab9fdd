"""Imports go one way: render.py → jobspec → train.config; train → torch.

Without torch a render takes a fifth of a second and runs where no torch is installed.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def imported(file: Path) -> Iterator[str]:
    """Every module that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def violations(package: str, forbidden: set[str]) -> list[str]:
    files = sorted((ROOT / package).rglob("*.py")) if (ROOT / package).is_dir() else [ROOT / package]
    return [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in imported(file)
        if name in forbidden or name.split(".")[0] in forbidden
    ]


def test_train_imports_neither_jobspec_nor_jinja2() -> None:
    assert violations("train", {"jobspec", "jinja2", "render"}) == []


def test_jobspec_imports_no_torch_and_not_the_command_line() -> None:
    assert violations("jobspec", {"torch", "torchvision", "numpy", "render"}) == []


def test_jobspec_takes_only_the_config_from_train() -> None:
    names = {name for file in (ROOT / "jobspec").rglob("*.py") for name in imported(file)}
    assert {name for name in names if name.split(".")[0] == "train"} == {"train.config"}


@pytest.mark.parametrize("arguments", [["torchrun", "jobs/quickstart.yaml"], ["schema"]])
def test_render_imports_no_torch(arguments: list[str]) -> None:
    code = (
        "import sys, render\n"
        "assert render.main(sys.argv[1:]) == 0\n"
        "heavy = {'torch', 'torchvision', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
