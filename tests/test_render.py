"""The command line: exit codes, what is written where, and the same bytes everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import render

ROOT = Path(__file__).parent.parent
QUICKSTART = str(ROOT / "jobs" / "quickstart.yaml")


def command_line(*arguments: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[bytes]:
    words = [sys.executable, str(ROOT / "render.py"), *arguments]
    return subprocess.run(words, cwd=cwd, env={**os.environ, **env}, capture_output=True)


def test_artifact_goes_to_stdout_and_nothing_to_stderr() -> None:
    done = command_line("torchrun", QUICKSTART)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"#!/usr/bin/env bash\n")


def test_same_bytes_from_any_folder_locale_time_zone_and_environment(tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text('name: job\nnodes: 2\nprocs_per_node: 2\ncommand: [mine.py, "größe 図"]\n', encoding="utf-8")
    made = {
        command_line("torchrun", str(spec)).stdout,
        command_line("torchrun", "job.yaml", cwd=tmp_path).stdout,
        command_line("torchrun", f"../{tmp_path.name}/job.yaml", cwd=tmp_path, LC_ALL="C", TZ="Asia/Tokyo").stdout,
        command_line("torchrun", str(spec), PYTHONIOENCODING="latin-1", PYTHONHASHSEED="7", MASTER_ADDR="x").stdout,
    }
    assert len(made) == 1
    assert "größe 図".encode() in made.pop()


def test_wrong_spec_is_exit_1_and_leaves_the_output_as_it_was(tmp_path: Path) -> None:
    output = tmp_path / "job.sh"
    output.write_text("old")
    done = command_line("torchrun", QUICKSTART, "--set", "nodes=0", "-o", str(output))
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"--set nodes=0:1:7: nodes must be")
    assert output.read_text() == "old"
    assert list(tmp_path.iterdir()) == [output]


def test_usage_is_exit_2() -> None:
    assert command_line("torchun", QUICKSTART).returncode == 2
    assert command_line("torchrun").returncode == 2


def test_unknown_argument_is_answered_with_the_usage_of_its_command() -> None:
    done = command_line("torchrun", QUICKSTART, "--noes=3")
    assert done.returncode == 2
    assert done.stderr.startswith(b"usage: render.py torchrun ")
    assert done.stderr.endswith(b"render.py torchrun: error: unrecognized arguments: --noes=3\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["torchrun", "none/job.yaml"], "none/job.yaml: No such file or directory\n  hint: there is no folder none\n"),
        (["torchrun", "jobs.yaml"], "jobs.yaml: No such file or directory\n  hint: did you mean job.yaml?\n"),
        (["torchrun", "zzz.yaml"], "zzz.yaml: No such file or directory\n  hint: in . are: job.yaml\n"),
        (["torchrun", "."], ".: Is a directory\n  hint: name a file in it\n"),
        (
            ["torchrun", "job.yaml", "-o", "none/job.sh"],
            "none/job.sh: No such file or directory\n  hint: there is no folder none\n",
        ),
    ],
)
def test_file_that_cannot_be_read_or_written_is_exit_1_with_its_name_and_a_hint(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "job.yaml").write_bytes(Path(QUICKSTART).read_bytes())
    done = command_line(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (1, b"", said)


def test_bug_is_exit_3_with_what_to_report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> str:
        raise ZeroDivisionError("of course")

    monkeypatch.setattr("jobspec.artifact.render", fail)
    assert render.main(["torchrun", QUICKSTART]) == 3
    told = capsys.readouterr().err
    assert "ZeroDivisionError: of course" in told
    assert "Please report it" in told


def test_output_replaces_a_file_keeps_its_mode_and_writes_through_links(tmp_path: Path) -> None:
    output, link = tmp_path / "job.sh", tmp_path / "link.sh"
    output.write_text("old")
    output.chmod(0o750)
    link.symlink_to(output)
    assert command_line("torchrun", QUICKSTART, "-o", str(link)).returncode == 0
    assert output.read_bytes() == command_line("torchrun", QUICKSTART).stdout
    assert link.is_symlink()
    assert output.stat().st_mode & 0o777 == 0o750
    assert sorted(tmp_path.iterdir()) == [output, link]


def test_output_to_a_device_writes_to_it(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE)
    assert command_line("torchrun", QUICKSTART, "-o", str(fifo)).returncode == 0
    assert reader.communicate(timeout=10)[0] == command_line("torchrun", QUICKSTART).stdout


def test_reader_that_goes_away_gives_no_traceback() -> None:
    line = f'"{sys.executable}" "{ROOT}/render.py" schema | head -c 1'
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert done.stderr == b""


def test_diff_is_exit_1_with_the_difference_and_exit_0_without_one(tmp_path: Path) -> None:
    file = tmp_path / "job.sh"
    made = command_line("torchrun", QUICKSTART).stdout
    file.write_bytes(made)
    done = command_line("diff", QUICKSTART, str(file), "--target", "torchrun")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    file.write_bytes(made + b"\xff")
    done = command_line("diff", QUICKSTART, str(file), "--target", "torchrun")
    assert (done.returncode, done.stderr) == (1, b"")
    assert done.stdout.endswith(b"\n-\xff\n\\ No newline at end of file\n")


def test_diff_of_a_wrong_spec_or_of_no_file_is_exit_1_with_a_message(tmp_path: Path) -> None:
    done = command_line("diff", QUICKSTART, str(tmp_path / "none"), "--target", "torchrun")
    assert (done.returncode, done.stdout, done.stderr.decode()) == (
        1,
        b"",
        f"{tmp_path}/none: No such file or directory\n",
    )
    done = command_line("diff", QUICKSTART, QUICKSTART, "--target", "torchrun", "--set", "nodes=0")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"--set nodes=0:1:7: nodes must be")


def test_explain_prints_a_table_or_json() -> None:
    table = command_line("explain", QUICKSTART, "--target", "torchrun")
    assert (table.returncode, table.stderr) == (0, b"")
    assert table.stdout.startswith(b"quickstart on torchrun: 1 node x 2 processes")
    assert json.loads(command_line("explain", QUICKSTART, "--target", "torchrun", "--json").stdout)["world_size"] == 2


def test_schema_is_json() -> None:
    assert json.loads(command_line("schema").stdout)["title"] == "job spec"
