"""render.py lint: every problem, and what was skipped."""

from __future__ import annotations

from pathlib import Path

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
    assert (done.returncode, done.stdout, done.stderr.decode()) == (0, b"", said)


def test_link_to_nowhere_is_said_and_not_its_own_name_again(tmp_path: Path) -> None:
    (tmp_path / "a.sh").symlink_to("gone.sh")
    done = command_line("lint", "a.sh", cwd=tmp_path)
    said = "a.sh: No such file or directory\n  hint: it is a link to gone.sh, which is not there\n"
    assert (done.returncode, done.stdout, done.stderr.decode()) == (1, b"", said)


def test_hook_of_pre_commit_takes_folders_and_fails_at_a_problem(tmp_path: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    program, *words = hook["entry"].split()
    assert (program, hook["pass_filenames"]) == ("render-job", False)
    (tmp_path / "mkdocs.yml").write_text("site_name: x\n")
    assert command_line(*words, str(tmp_path)).returncode == 0
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --nodess=2\n")
    assert command_line(*words, str(tmp_path)).returncode == 1
