"""Imports go one way: jobspec → train.config; train → torch; in both from the top downwards.

Without torch a render takes a fifth of a second and runs where no torch is installed.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# The rooms of a package from the top to the bottom: each may import those below it, never one beside or above it.
TRAIN = [
    {"__main__", "doctor", "report"},
    {"trainer"},
    {"run", "check_exact"},
    {"loop"},
    {"strategies"},
    {"ddp"},
    {"sync", "models"},
    {"records"},
    {"cpu", "checkpoints", "data"},
    {"collectives", "datasets"},
    {"world", "flags"},
    {"config", "errors"},
    {"contradictions"},
]
# reading is this high because its hints name options of sbatch and keys of a pod; nothing below reads YAML.
JOBSPEC = [
    {"commands"},
    {"ssh"},
    {"examples"},
    {"artifact", "explain", "output"},
    {"reading", "targets"},
    {"slurm"},
    {"runtimes"},
    {"filters"},
    {"kubernetes"},
    {"environment", "torchrun"},
    {"plan"},
    {"spec"},
    {"problems"},
]
KNOW_CPU = {"sync", "models", "loop", "__main__"}


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
    assert violations("train", {"jobspec", "jinja2"}) == []


def test_jobspec_imports_no_torch() -> None:
    assert violations("jobspec", {"torch", "torchvision", "numpy"}) == []


def test_jobspec_takes_only_the_version_and_the_config_from_train() -> None:
    names = {name for file in (ROOT / "jobspec").rglob("*.py") for name in imported(file)}
    assert {name for name in names if name.split(".")[0] == "train"} == {"train", "train.config"}


def modules_of(package: str) -> dict[str, set[str]]:
    """Each module of a package, and those of the same package that it imports, for types or in a function too."""
    files = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
        for file in sorted((ROOT / package).rglob("*.py"))
    }
    found = {}
    for name, file in files.items():
        statements = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
        # `from train.records import progress` imports the module train.records.progress.
        named = {f"{node.module}.{alias.name}" for node in statements for alias in node.names}
        named |= {
            node.module or "" for node in statements if not all(f"{node.module}.{a.name}" in files for a in node.names)
        }
        found[name] = named & set(files) - {name}
    return found


@pytest.mark.parametrize(("package", "floors"), [("train", TRAIN), ("jobspec", JOBSPEC)])
def test_rooms_import_only_rooms_below_them(package: str, floors: list[set[str]]) -> None:
    floor_of = {room: floor for floor, rooms in enumerate(floors) for room in rooms}
    wrong = []
    for name, imported_names in modules_of(package).items():
        if name == package:
            continue  # the public names of train are loaded on first use
        room = name.split(".")[1]
        if "jobspec" in imported_names:
            wrong.append(f"{name} imports jobspec")
        for other in imported_names - {package}:
            below = other.split(".")[1]
            if below != room and floor_of[below] <= floor_of[room]:
                wrong.append(f"{name} imports {other}")
            if below == "cpu" and room not in KNOW_CPU | {"cpu"}:
                wrong.append(f"{name} imports {other}, which only {sorted(KNOW_CPU)} may")
    assert wrong == []


@pytest.mark.parametrize("package", ["train", "jobspec"])
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    imports = modules_of(package)
    below: dict[str, set[str]] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join((*path[path.index(name) :], name))
        if name not in below:
            for other in sorted(imports[name]):
                visit(other, (*path, name))
            below[name] = imports[name]

    for name in imports:
        # The public names of both are loaded on first use.
        visit(name, ()) if name not in ("train", "jobspec") else below.setdefault(name, set())


def test_render_imports_no_torch() -> None:
    code = (
        "import sys\nfrom jobspec.commands import main\n"
        "assert main(['torchrun', 'jobs/quickstart.yaml']) == main(['schema']) == 0\n"
        "heavy = {'torch', 'torchvision', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def test_public_names_of_train_are_loaded_on_first_use() -> None:
    code = (
        "import sys, train\n"
        "assert 'torch' not in sys.modules\n"
        "public = [name for name in train.__all__ if name != '__version__']\n"
        "assert [getattr(train, name).__name__ for name in public] == public\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
