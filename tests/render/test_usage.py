"""The command line itself: exit codes, version, schema, and files that cannot be read or written."""

import json
from pathlib import Path

import pytest

import jobspec
import render
import train
from jobspec.problems import SpecError
from tests.render.command import QUICKSTART, command_line


def test_usage_is_exit_2() -> None:
    assert command_line("torchun", QUICKSTART).returncode == 2
    assert command_line("torchrun").returncode == 2


def test_unknown_argument_is_answered_with_the_usage_of_its_command() -> None:
    done = command_line("torchrun", QUICKSTART, "--noes=3")
    assert done.returncode == 2
    assert done.stderr.startswith(b"usage: render.py torchrun ")
    assert done.stderr.endswith(b"render.py torchrun: error: unrecognized arguments: --noes=3\n")


@pytest.mark.parametrize("number", ["1000", "-1", "one", ""])
def test_number_of_a_combination_is_answered_with_its_range(number: str) -> None:
    done = command_line("torchrun", QUICKSTART, "--sweep-index", number)
    assert done.returncode == 2
    message = f"render.py torchrun: error: argument --sweep-index: must be a number from 0 to 999, not {number}\n"
    assert done.stderr.decode().endswith(message)


def test_version_is_that_of_the_package() -> None:
    done = command_line("--version")
    assert (done.returncode, done.stdout.decode()) == (0, f"render.py {train.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["torchrun", "none/job.yaml"], "none/job.yaml: No such file or directory\n  hint: there is no folder none\n"),
        (["torchrun", "jobs.yaml"], "jobs.yaml: No such file or directory\n  hint: did you mean job.yaml?\n"),
        (["torchrun", "zzz.yaml"], "zzz.yaml: No such file or directory\n  hint: files in .: job.yaml\n"),
        (["torchrun", "."], ".: Is a directory\n  hint: name a file in it\n"),
        (["torchrun", "/proc/self/mem"], "/proc/self/mem: Input/output error\n"),  # opens, and cannot be read
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


@pytest.mark.parametrize(
    ("words", "end"),
    [
        (["kubernetes", "job.yaml"], "no target kubernetes; choose indexedjob, jobset, pytorchjob or trainjob\n"),
        (["sbatch", "job.yaml"], "there is no target sbatch; choose slurm\n"),
        (["job.yaml"], "name a target before job.yaml, such as: render.py slurm job.yaml\n"),
        ([], "--target slurm              where each process runs, and its variables\n"),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else "",
)
def test_first_word_that_is_no_command_is_answered_with_what_was_meant(words: list[str], end: str) -> None:
    done = command_line(*words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().endswith(end)


def test_help_is_a_command_too() -> None:
    done = command_line("help")
    assert (done.returncode, done.stdout) == (0, command_line("--help").stdout)


def test_python_renders_a_mapping_or_a_file_as_the_command_does(tmp_path: Path) -> None:
    spec = {"name": "job", "nodes": 2, "procs_per_node": 2, "device": "cpu", "command": ["mine.py", "no", "1e-3"]}
    (tmp_path / "job.yaml").write_text(json.dumps(spec))
    rendered = command_line("slurm", "job.yaml", cwd=tmp_path).stdout.decode()
    assert jobspec.render("slurm", spec) == rendered.replace("slurm job.yaml`", "slurm -`")
    assert jobspec.render("jobset", QUICKSTART) == command_line("jobset", QUICKSTART).stdout.decode()
    with pytest.raises(SpecError, match='unknown key "node"'):
        jobspec.render("slurm", {**spec, "node": 3})


def test_problems_are_json_for_programs(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: job\nnodes: 1\nprocs_per_node: 1\ncommand: [a.py]\nnode: 3\n")
    done = command_line("slurm", "job.yaml", "--set", "command[0]=x.py", "--format", "json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, b"")
    (problem,) = json.loads(done.stderr)
    assert (problem["file"], problem["hint"]) == ("--set command[0]=x.py", "--set command.0=…")
    (problem,) = json.loads(command_line("slurm", "job.yaml", "--format=json", cwd=tmp_path).stderr)
    place = {"file": "job.yaml", "line": 5, "column": 1, "length": 4}
    assert problem == {**place, "message": 'unknown key "node"', "hint": 'did you mean "nodes"?'}
