"""The command line: exit codes, what is written where, and the same bytes everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import render
import train

ROOT = Path(__file__).parent.parent
QUICKSTART = str(ROOT / "jobs" / "quickstart.yaml")


def command_line(*arguments: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[bytes]:
    words = [sys.executable, str(ROOT / "render.py"), *arguments]
    return subprocess.run(words, cwd=cwd, env={**os.environ, **env}, capture_output=True)


def test_artifact_goes_to_stdout_and_only_notes_to_stderr() -> None:
    done = command_line("torchrun", QUICKSTART)
    assert done.returncode == 0
    assert all(line.startswith(b"note: ") for line in done.stderr.splitlines())
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
    output.write_text("#!/bin/bash\n# Rendered by `render.py slurm job.yaml`; edit the spec, not this file.\n")
    output.chmod(0o750)
    link.symlink_to(output)
    assert command_line("torchrun", QUICKSTART, "-o", str(link)).returncode == 0
    assert output.read_bytes() == command_line("torchrun", QUICKSTART).stdout
    assert link.is_symlink()
    assert output.stat().st_mode & 0o777 == 0o750
    assert sorted(tmp_path.iterdir()) == [output, link]


def test_output_replaces_a_file_of_others_only_by_force(tmp_path: Path) -> None:
    output = tmp_path / "job.sh"
    output.write_text("echo mine\n")
    done = command_line("torchrun", QUICKSTART, "-o", str(output))
    assert (done.returncode, output.read_text()) == (1, "echo mine\n")
    said = f"{output}: is there already and render.py has not written it\n  hint: --force replaces it\n"
    assert done.stderr.decode() == said
    assert command_line("torchrun", QUICKSTART, "-o", str(output), "--force").returncode == 0
    assert output.read_bytes() == command_line("torchrun", QUICKSTART).stdout


@pytest.mark.parametrize("words", [["torchrun"], ["torchrun", "--force"], ["explain", "--target=torchrun"]])
def test_output_never_replaces_the_spec(words: list[str], tmp_path: Path) -> None:
    spec, link = tmp_path / "job.yaml", tmp_path / "link.yaml"
    spec.write_bytes(Path(QUICKSTART).read_bytes())
    link.symlink_to(spec)
    for output in (spec, link):
        done = command_line(*words, str(spec), "-o", str(output))
        assert (done.returncode, spec.read_bytes()) == (1, Path(QUICKSTART).read_bytes())
        assert b"is read by this command" in done.stderr


def test_files_with_different_names_are_noted(tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("# mine\nname: other\n")
    said = (
        "note: these files are merged into one job, but give different names, of which the last counts: "
        f'"quickstart" in {QUICKSTART}:3, "other" in {other}:2\n'
    )
    for words in (["torchrun", QUICKSTART, str(other)], ["explain", QUICKSTART, str(other), "--target=torchrun"]):
        done = command_line(*words)
        assert (done.returncode, said in done.stderr.decode()) == (0, True)
    other.write_text("name: quickstart\n")
    assert b"different names" not in command_line("torchrun", QUICKSTART, str(other)).stderr


SITE = "slurm: {partition: gpu}\nenv: {NOTE: ours}\n+secrets: [TOKEN]\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    file = tmp_path / "site.yaml"
    file.write_text(SITE)
    return file


def test_files_are_merged_and_named_in_the_header_wherever_they_stand_in_the_command(site: Path) -> None:
    made = command_line("slurm", QUICKSTART, str(site), "--set", "env.NOTE=mine").stdout.decode()
    assert made.splitlines()[1].startswith(
        "# Rendered by `render.py slurm quickstart.yaml site.yaml --set env.NOTE=mine`;"
    )
    assert "#SBATCH --partition=gpu\n" in made
    assert "NOTE=mine" in made and "ours" not in made
    assert command_line("slurm", QUICKSTART, "--set", "env.NOTE=mine", str(site)).stdout.decode() == made
    assert command_line("slurm", str(site), QUICKSTART).stdout.decode().splitlines()[1] != made.splitlines()[1]


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
    words = ["bash", "-c", 'exec "$@" <&-', "bash", sys.executable, str(ROOT / "render.py"), "slurm", "-"]
    done = subprocess.run(words, capture_output=True)
    assert (done.returncode, done.stderr) == (1, b"<stdin>: Bad file descriptor\n")


def closed(stream: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    words = ["bash", "-c", f'exec "$@" {stream}&-', "bash", sys.executable, str(ROOT / "render.py"), *arguments]
    return subprocess.run(words, capture_output=True)


def test_closed_stdout_is_a_mistake_and_no_bug(tmp_path: Path) -> None:
    output = tmp_path / "job.sh"
    done = closed(">", "torchrun", QUICKSTART)
    assert (done.returncode, done.stderr) == (1, b"stdout: Bad file descriptor\n")
    assert closed(">", "torchrun", QUICKSTART, "-o", str(output)).returncode == 0
    assert output.read_bytes() == command_line("torchrun", QUICKSTART).stdout


def test_closed_stderr_leaves_the_artifact_as_it_is(tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text("name: job\nnodes: 1\nprocs_per_node: 1\ntime_limit: 2h\ncommand: [mine.py]\n")
    open_ = command_line("torchrun", str(spec))
    assert open_.stderr.startswith(b"note: ")
    done = closed("2>", "torchrun", str(spec))
    assert (done.returncode, done.stdout) == (0, open_.stdout)
    assert closed("2>", "torchrun", str(spec), "--set", "nodes=0").returncode == 1


def test_stdin_twice_is_usage() -> None:
    done = command_line("slurm", "-", "-")
    assert done.returncode == 2
    assert done.stderr.endswith(b"error: stdin (-) can be given once\n")


def test_output_never_replaces_any_file_of_the_spec(site: Path) -> None:
    for files in ([QUICKSTART, str(site)], [str(site), QUICKSTART]):
        done = command_line("slurm", *files, "-o", str(site), "--force")
        assert (done.returncode, site.read_text()) == (1, SITE)
        assert b"is read by this command" in done.stderr


def test_output_never_replaces_what_lint_or_diff_reads(tmp_path: Path) -> None:
    script, artifact = tmp_path / "a.sh", tmp_path / "job.sh"
    script.write_text("echo\n")
    artifact.write_bytes(command_line("slurm", QUICKSTART).stdout)
    diff = ["diff", QUICKSTART, str(artifact), "--target", "slurm", "-o", str(artifact)]
    for words in (["lint", str(script), "-o", str(script)], ["lint", str(tmp_path), "-o", str(script)], diff):
        for force in ([], ["--force"]):
            before = script.read_bytes(), artifact.read_bytes()
            done = command_line(*words, *force)
            assert (done.returncode, done.stdout, script.read_bytes(), artifact.read_bytes()) == (1, b"", *before)
            assert done.stderr.endswith(
                b": is read by this command, and -o must not replace it\n  hint: name another file\n"
            )


@pytest.mark.parametrize(
    "words",
    [
        ["lint", "slurm/pyxis.slurm.sh"],
        ["schema"],
        ["check"],
        ["explain", QUICKSTART, "--target=slurm"],
        ["diff", QUICKSTART, "slurm/pyxis.slurm.sh", "--target=slurm", "--set=train.lr=1"],
    ],
    ids=lambda words: words[0],
)
def test_other_commands_replace_a_file_only_by_force(words: list[str], tmp_path: Path) -> None:
    output = tmp_path / "job2.yaml"
    for old in ("name: mine\n", "# Rendered by `render.py slurm job.yaml`; edit the spec, not this file.\n"):
        output.write_text(old)
        done = command_line(*words, "-o", str(output))
        assert (done.returncode, output.read_text()) == (1, old)
        assert done.stderr.decode().endswith(f"{output}: is there already\n  hint: --force replaces it\n")
    done = command_line(*words, "-o", str(output), "--force")
    assert output.read_bytes() == command_line(*words).stdout != old.encode()


def test_output_to_a_dash_is_stdout(tmp_path: Path) -> None:
    done = command_line("torchrun", QUICKSTART, "-o", "-", cwd=tmp_path)
    assert done.stdout == command_line("torchrun", QUICKSTART).stdout
    assert not list(tmp_path.iterdir())


def test_diff_of_several_files_takes_the_last_one_as_the_artifact(site: Path, tmp_path: Path) -> None:
    artifact = tmp_path / "job.sh"
    artifact.write_bytes(command_line("slurm", QUICKSTART, str(site)).stdout)
    words = [QUICKSTART, str(site), str(artifact)]
    assert command_line("diff", *words, "--target", "slurm").returncode == 0
    assert command_line("diff", *words[:2], "--target", "slurm", words[2]).returncode == 0
    assert command_line("diff", words[0], "--target", "slurm", *words[1:]).returncode == 0
    site.write_text("slurm: {partition: cpu}\n")
    done = command_line("diff", *words, "--target", "slurm")
    assert done.returncode == 1
    assert b"\n-#SBATCH --partition=gpu\n+#SBATCH --partition=cpu\n" in done.stdout
    assert command_line("diff", str(artifact), "--target", "slurm").returncode == 2


def test_explain_says_where_each_value_comes_from(site: Path) -> None:
    words = ["explain", QUICKSTART, str(site), "--target", "slurm", "--origin", "--set", "train.lr=1"]
    told = json.loads(command_line(*words, "--json").stdout)["spec"]
    value_and_origin = {entry["key"]: (entry["value"], entry["origin"]) for entry in told}
    assert value_and_origin["nodes"] == (1, f"{QUICKSTART}:4")
    assert value_and_origin["slurm.partition"] == ("gpu", f"{site}:1")
    assert value_and_origin["env.NOTE"] == ("ours", f"{site}:2")
    assert value_and_origin["secrets.0"] == ("TOKEN", f"{site}:3")
    assert value_and_origin["train.lr"] == (1, "--set")
    assert value_and_origin["train.seed"] == (0, "default")
    assert value_and_origin["slurm.launcher"] == ("torchrun", "default")
    rows = [line.split() for line in command_line(*words).stdout.decode().splitlines()]
    assert ["slurm.partition", f"{site}:1", "gpu"] in rows
    assert ["train.lr", "--set", "1"] in rows
    assert ["key", "from", "value"] not in [
        line.split() for line in command_line(*words[:5]).stdout.decode().splitlines()
    ]


def test_version_is_that_of_the_package() -> None:
    done = command_line("--version")
    assert (done.returncode, done.stdout.decode()) == (0, f"render.py {train.__version__}\n")


def test_what_a_target_leaves_out_is_a_note_on_stderr_and_in_the_artifact(tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text(
        "name: job\nnodes: 1\nprocs_per_node: 1\nimage: train:1\ntime_limit: 2h\n"
        'command: [mine.py, "a\\n# Not used here: b"]\n'
    )
    done = command_line("torchrun", str(spec))
    notes = [
        "Not used here: image; this script runs in the shell's own environment, not in a container.",
        "Not used here: time_limit; nothing ends the job.",
    ]
    assert (done.returncode, done.stderr.decode().splitlines()) == (0, [f"note: {note}" for note in notes])
    assert all(f"# {note}\n" in done.stdout.decode() for note in notes)


def test_at_most_20_problems_are_printed(tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text("name: job\nnodes: 1\nprocs_per_node: 1\n" + "".join(f"key{n}: 1\n" for n in range(30)))
    said = command_line("torchrun", str(spec)).stderr.decode()
    count = int(said.splitlines()[-1].split()[0])
    assert count >= 30
    assert said.count(f"{spec}:") == 20
    assert f"\n… and {count - 20} more\n" in said


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


def test_lint_of_a_folder_notes_what_it_skipped(tmp_path: Path) -> None:
    (tmp_path / "mkdocs.yml").write_text("site_name: x\n")
    (tmp_path / "job.sh").write_text("#!/bin/bash\necho\n")
    done = command_line("lint", str(tmp_path))
    said = f"note: skipped, because lint does not know what it is: {tmp_path}/mkdocs.yml\n"
    assert (done.returncode, done.stdout, done.stderr.decode()) == (0, b"", said)


def test_lint_prints_all_problems(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("export WANDB_API_KEY=hush\n" * 30)
    done = command_line("lint", str(tmp_path))
    assert done.stdout.decode().count(f"{script}:") == 30
    assert done.stdout.endswith(b"\n30 problems\n")


def test_link_to_nowhere_is_said_and_not_its_own_name_again(tmp_path: Path) -> None:
    (tmp_path / "a.sh").symlink_to("gone.sh")
    done = command_line("lint", "a.sh", cwd=tmp_path)
    said = "a.sh: No such file or directory\n  hint: it is a link to gone.sh, which is not there\n"
    assert (done.returncode, done.stdout, done.stderr.decode()) == (1, b"", said)


def test_schema_is_json() -> None:
    assert json.loads(command_line("schema").stdout)["title"] == "job spec"
