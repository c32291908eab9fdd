"""The rendered examples in slurm/, k8s/ and docker/ are what jobs/ gives, and `render-job check` sees every change."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jobspec.artifact import render
from jobspec.examples import FOLDERS, check
from tests.command_line import command_line

ROOT = Path(__file__).parents[2]
EXAMPLE = Path("docker/quickstart-2x3.torchrun.sh")


def put(root: Path, *specs: str, **options: Any) -> None:
    """Write the example, of some files in jobs/."""
    text = render("torchrun", [str(root / "jobs" / spec) for spec in specs], output=EXAMPLE.name, **options)
    (root / EXAMPLE).write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with the jobs of the repository and one example."""
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs")
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
    put(tmp_path, "quickstart.yaml", overrides=["nodes=2", "procs_per_node=3"])
    (tmp_path / "k8s" / "queue.yaml").write_text("kind: LocalQueue  # written by hand, so nothing to compare with\n")
    return tmp_path


def test_examples_of_the_repository_are_up_to_date() -> None:
    assert check() == ""


def test_change_of_any_byte_is_seen(root: Path) -> None:
    example = root / EXAMPLE
    right = example.read_bytes()
    # Many bytes of the header, since that is what an example is known by, and some of the rest.
    for at in [*range(0, 150, 7), *range(150, len(right), 100)]:
        example.write_bytes(right[:at] + bytes([right[at] ^ 1]) + right[at + 1 :])
        assert str(EXAMPLE) in check(root), at


def test_no_example_at_all_is_reported(root: Path) -> None:
    (root / EXAMPLE).unlink()
    assert check(root).endswith("no rendered file in slurm, k8s, docker: call render.py of a clone\n")


def test_change_is_exit_1_and_write_undoes_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobspec.examples.check", partial(check, root))
    example = root / EXAMPLE
    right = example.read_bytes()
    done = command_line("check")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    example.write_bytes(right.replace(b"--nproc-per-node=3", b"--nproc-per-node=4"))
    done = command_line("check")
    assert (done.returncode, done.stdout.startswith(f"{EXAMPLE}: differs".encode())) == (1, True)
    assert command_line("check", "--write").returncode == 0
    assert example.read_bytes() == right


def test_job_that_is_gone_or_wrong_is_reported_and_nothing_is_written(root: Path) -> None:
    right = (root / EXAMPLE).read_bytes()
    (root / "jobs" / "quickstart.yaml").write_text("name: quickstart\nnodes: 1\nprocs_per_node: 1\n")
    assert "neither train nor command is given" in check(root, write=True)
    (root / "jobs" / "quickstart.yaml").unlink()
    assert "No such file" in check(root, write=True)
    assert (root / EXAMPLE).read_bytes() == right


def test_example_under_another_name_is_known_by_its_header_which_then_has_the_wrong_name(root: Path) -> None:
    (root / EXAMPLE).rename(root / "slurm" / "submit.sh")
    assert check(root).startswith("slurm/submit.sh: differs")
    check(root, write=True)
    assert check(root) == ""


def test_example_of_a_job_and_a_site_is_rendered_from_both(root: Path) -> None:
    (root / "sites").mkdir()
    site = root / "sites" / "ours.yaml"
    site.write_text("nodes: 3\n")
    put(root, "quickstart.yaml", "../sites/ours.yaml", overrides=["train.lr=1"])
    assert check(root) == ""
    site.write_text("nodes: 4\n")
    assert check(root).startswith(f"{EXAMPLE}: differs")


def test_example_of_one_combination_of_a_sweep_is_rendered_from_it(root: Path) -> None:
    with (root / "jobs" / "quickstart.yaml").open("a") as job:
        job.write("sweep: {train.seed: [5, 6]}\n")
    put(root, "quickstart.yaml", overrides=["nodes=2"], sweep_index=1)
    assert check(root) == ""
    example = (root / EXAMPLE).read_text()
    for number in ("2", "one"):
        (root / EXAMPLE).write_text(example.replace("--sweep-index 1 ", f"--sweep-index {number} "))
        assert "cannot be rendered" in check(root)


def test_header_that_would_reach_out_of_jobs_is_no_command(root: Path) -> None:
    example = root / EXAMPLE
    example.write_text("# Rendered by `render-job torchrun ../secret.yaml`; edit the spec, not this file.\n")
    assert "render-job never writes this command" in check(root)
