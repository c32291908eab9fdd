"""render.py lint: every problem, and what was skipped."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.render.command import ROOT, command_line


def test_lint_prints_all_problems(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("export WANDB_API_KEY=hush\n" * 30)
    done = command_line("lint", str(tmp_path))
    assert done.stdout.decode().count(f"{script}:") == 30
    assert done.stdout.endswith(b"\n30 problems\n")


def test_lint_of_a_folder_notes_what_it_skipped(tmp_path: Path) -> None:
    (tmp_path / "mkdocs.yml").write_text("site_name: x\n")
    (tmp_path / "job.sh").write_text("#!/bin/bash\necho\n")
    done = command_line("lint", str(tmp_path))
    said = f"note: skipped a file of a kind that lint does not know: {tmp_path}/mkdocs.yml\n"
    said += "note: no findings in the other files\n"
    assert (done.returncode, done.stdout, done.stderr.decode()) == (0, b"", said)


def test_link_to_nowhere_is_said_and_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.sh").symlink_to("gone.sh")
    done = command_line("lint", "a.sh", cwd=tmp_path)
    said = (
        "a.sh:1:1: error: No such file or directory\n  hint: it is a link to gone.sh, which is not there\n1 problem\n"
    )
    assert (done.returncode, done.stdout.decode(), done.stderr) == (4, said, b"")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--list"], 0, "error    not-exported "),
        (["--explain", "not-exported"], 0, "not-exported (error)\nThe text in single quotes "),
        (["--explain", "gone"], 2, "there is no rule gone of lint; --list names all"),
        (["--explain", "SC2086"], 2, "https://www.shellcheck.net/wiki/SC2086"),
        (["--explain", "ignores-no-rule"], 0, "ignores-no-rule (warning)\n"),
        (["--list", "--format=json"], 2, "--list and --explain take neither a PATH nor --format"),
        ([], 2, "give at least one PATH; - is stdin"),
        (["--slurm", "new", "a.sh"], 2, "must be a version such as 23.02, not new"),
        (["a.sh"], 0, ""),
        (["a.sh", "--slurm=22.05"], 0, "warning: in this version srun does not inherit"),
        (["a.sh", "--slurm=22.05", "--strict"], 1, "[srun-without-cpus]"),
        (["a.sh", "--slurm=23.11", "--strict"], 0, ""),
        (["b.sh"], 0, "wait for it for ten minutes or more"),
        (["b.sh", "--torch=2.1"], 0, "wait for it until the time limit"),
    ],
)
def test_what_lint_is_asked_is_answered(tmp_path: Path, words: list[str], code: int, said: str) -> None:
    (tmp_path / "a.sh").write_text("#!/bin/bash\n#SBATCH --cpus-per-task=8\nsrun python train.py\n")
    (tmp_path / "b.sh").write_text("#!/bin/bash\n#SBATCH --nodes=8\nsrun python train.py\n")
    done = command_line("lint", *words, cwd=tmp_path)
    assert done.returncode == code
    assert said in (done.stdout + done.stderr).decode()
    assert said or not done.stdout


def test_lint_reads_stdin(tmp_path: Path) -> None:
    words = [sys.executable, str(ROOT / "render.py"), "lint", "-", "--format=json"]
    script = b"#!/bin/bash\nexport HF_TOKEN=hush\n"
    done = subprocess.run(words, cwd=tmp_path, input=script, capture_output=True, timeout=60)
    assert (done.returncode, json.loads(done.stdout)[0]["rule"]) == (1, "secret-in-file")


def test_small_script_is_linted_in_a_quarter_of_a_second(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("#!/bin/bash\n#SBATCH --nodes=1\ntorchrun --standalone train.py\n")
    seconds = []
    for _ in range(5):  # of the CPU: others use the machine, too
        begin = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert command_line("lint", "a.sh", cwd=tmp_path).returncode == 0
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime)
    assert min(seconds) <= 0.25


def test_hook_of_pre_commit_takes_folders_and_fails_at_a_problem(tmp_path: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    program, *words = hook["entry"].split()
    assert (program, hook["pass_filenames"]) == ("render-job", False)
    (tmp_path / "mkdocs.yml").write_text("site_name: x\n")
    assert command_line(*words, str(tmp_path)).returncode == 0
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --nodess=2\n")
    assert command_line(*words, str(tmp_path)).returncode == 1
