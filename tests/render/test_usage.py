"""The command line itself: exit codes, version, schema, and files that cannot be read or written."""

import json
from pathlib import Path

import pytest

import jobspec
import train
from jobspec import commands
from jobspec.problems import SpecError
from tests.render.command import QUICKSTART, command_line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the JSON Schema of the job spec, for editors"),
        (["kubernetes", QUICKSTART], "argument COMMAND: invalid choice: 'kubernetes' (choose from"),
        (["torchrun"], "render-job torchrun: error: the following arguments are required: FILE"),
        (["torchrun", QUICKSTART, "--noes=3"], "render-job torchrun: error: unrecognized arguments: --noes=3\n"),
        (["torchrun", QUICKSTART, "--sweep-index", "-1"], "--sweep-index: must be a number from 0 to 999, not -1\n"),
        (["torchrun", QUICKSTART, "--sweep-index", "1000"], "must be a number from 0 to 999, not 1000\n"),
        (["schema", QUICKSTART], "render-job schema: error: unrecognized arguments: "),
    ],
    ids=lambda value: " ".join(value[::2]) or "nothing" if isinstance(value, list) else "",
)
def test_wrong_command_is_exit_2_with_its_usage(words: list[str], said: str) -> None:
    done = command_line(*words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"usage: render-job ")
    assert said in done.stderr.decode()


def test_version_is_that_of_the_package() -> None:
    done = command_line("--version")
    assert (done.returncode, done.stdout.decode()) == (0, f"render-job {train.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["torchrun", "none/job.yaml"], "none/job.yaml: No such file or directory\n  hint: there is no folder none\n"),
        (["torchrun", "jobs.yaml"], "jobs.yaml: No such file or directory\n  hint: did you mean job.yaml?\n"),
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
    assert commands.main(["torchrun", QUICKSTART]) == 3
    told = capsys.readouterr().err
    assert "ZeroDivisionError: of course" in told
    assert "Please report it" in told


def test_python_renders_a_mapping_or_a_file_as_the_command_does(tmp_path: Path) -> None:
    spec = {"name": "job", "nodes": 2, "procs_per_node": 2, "device": "cpu", "command": ["mine.py", "no", "1e-3"]}
    (tmp_path / "job.yaml").write_text(json.dumps(spec))
    rendered = command_line("slurm", "job.yaml", cwd=tmp_path).stdout.decode()
    assert jobspec.render("slurm", spec) == rendered.replace("slurm job.yaml`", "slurm -`")
    assert jobspec.render("jobset", QUICKSTART) == command_line("jobset", QUICKSTART).stdout.decode()
    with pytest.raises(SpecError, match='unknown key "node"'):
        jobspec.render("slurm", {**spec, "node": 3})
