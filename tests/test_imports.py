"""Imports go one way: jobspec → train.config; train → torch; in both from the top downwards.

Without torch a render takes a fifth of a second and runs where no torch is installed.
"""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# The rooms of a package from the top to the bottom: each may import those below it, never one beside or above it.
TRAIN = [
    {"__main__", "doctor", "report"},
    {"examination", "trainer"},
    {"run", "check_exact", "check_loop"},
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
    {"commands", "watch"},
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
    {"problems", "train", "why"},
]
KNOW_CPU = {"strategies", "loop"}


def imported(file: Path) -> set[str]:
    """Every module that a file imports, also in a function or for types; `from a import b` may be the module a.b."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def modules_of(package: str) -> dict[str, set[str]]:
    """Each module of a package, and those that it imports."""
    files = sorted((ROOT / package).rglob("*.py"))
    return {".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): imported(f) for f in files}


def test_packages_import_of_others_only_what_a_render_without_torch_needs() -> None:
    foreign = {"train": {"jobspec", "jinja2"}, "jobspec": {"torch", "torchvision", "numpy", "train"}}
    for package, others in foreign.items():
        modules = modules_of(package)
        modules.pop("jobspec.watch", None)  # runs in the job
        names = {name for names in modules.values() for name in names if name.split(".")[0] in others}
        names = {name for name in names if not name.startswith("train.config")}
        assert names == set()


@pytest.mark.parametrize(("package", "floors"), [("train", TRAIN), ("jobspec", JOBSPEC)])
def test_rooms_import_only_rooms_below_them(package: str, floors: list[set[str]]) -> None:
    floor_of = {room: floor for floor, rooms in enumerate(floors) for room in rooms}
    wrong = []
    imports = modules_of(package)
    for name, names in imports.items():
        if name == package:
            continue  # the public names are loaded on first use
        room = name.split(".")[1]
        for other in names & imports.keys() - {package}:
            below = other.split(".")[1]
            if below != room and floor_of[below] <= floor_of[room]:
                wrong.append(f"{name} imports {other}")
            if below == "cpu" and room not in KNOW_CPU | {"cpu"}:
                wrong.append(f"{name} imports {other}, which only {sorted(KNOW_CPU)} may")
    assert wrong == []


@pytest.mark.parametrize("package", ["train", "jobspec"])
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    imports = modules_of(package)
    del imports[package]
    sorter = TopologicalSorter({name: names & imports.keys() - {name} for name, names in imports.items()})
    sorter.prepare()  # CycleError names the circle


@pytest.mark.parametrize("module", ["train", "train.doctor"])
def test_without_torch_a_command_says_what_to_install(module: str) -> None:
    code = f"import runpy, sys; sys.modules['torch'] = None; runpy.run_module('{module}', run_name='__main__')"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    assert "needs the package torch, which is not installed here: pip install torch, or" in ended.stderr


def test_public_names_of_train_are_loaded_on_first_use() -> None:
    code = (
        "import sys, train\n"
        "assert 'torch' not in sys.modules\n"
        "public = [name for name in train.__all__ if name != '__version__']\n"
        "assert [getattr(train, name).__name__ for name in public] == public\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
