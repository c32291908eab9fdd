"""Several files make one spec, and one of them may be stdin."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.render.command import QUICKSTART, ROOT, closed, command_line


def test_files_are_merged_and_named_in_the_header_wherever_they_stand_in_the_command(site: Path) -> None:
    made = command_line("slurm", QUICKSTART, str(site), "--set", "env.NOTE=mine").stdout.decode()
    assert made.splitlines()[1].startswith(
        "# Rendered by `render-job slurm quickstart.yaml site.yaml --set env.NOTE=mine`;"
    )
    assert "#SBATCH --partition=gpu\n" in made
    assert "NOTE=mine" in made and "ours" not in made
    assert command_line("slurm", QUICKSTART, "--set", "env.NOTE=mine", str(site)).stdout.decode() == made
    assert command_line("slurm", str(site), QUICKSTART).stdout.decode().splitlines()[1] != made.splitlines()[1]


def test_files_with_different_names_are_noted(tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("# mine\nname: other\n")
    said = (
        "note: these files become one job, but give different names; the last name counts: "
        f'"quickstart" in {QUICKSTART}:3, "other" in {other}:2\n'
    )
    for words in (["torchrun", QUICKSTART, str(other)], ["explain", QUICKSTART, str(other), "--target=torchrun"]):
        done = command_line(*words)
        assert (done.returncode, said in done.stderr.decode()) == (0, True)
    other.write_text("name: quickstart\n")
    assert b"different names" not in command_line("torchrun", QUICKSTART, str(other)).stderr


@pytest.mark.parametrize("at", [0, 1])
def test_one_of_the_files_may_be_stdin(site: Path, at: int) -> None:
    files = [QUICKSTART, str(site)]
    data, files[at] = Path(files[at]).read_bytes(), "-"
    words = [sys.executable, str(ROOT / "render.py"), "slurm", *files]
    done = subprocess.run(words, input=data, capture_output=True)
    assert done.returncode == 0
    assert b"#SBATCH --partition=gpu\n" in done.stdout
    wrong = subprocess.run([*words, "--set", "nodes=0"], input=data + b"zebra: 1\n", capture_output=True)
    assert b"<stdin>:" in wrong.stderr


def test_closed_stdin_is_a_mistake_and_no_bug() -> None:
    done = closed("<", "slurm", "-")
    assert (done.returncode, done.stderr) == (1, b"<stdin>: Bad file descriptor\n")
