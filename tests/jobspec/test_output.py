"""-o and the standard streams: what is replaced, and what never is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import QUICKSTART, ROOT, closed, command_line


def test_head_names_the_file_of_o_or_a_file_of_the_job_and_the_target(tmp_path: Path) -> None:
    output = tmp_path / "my job.sh"
    assert command_line("slurm", QUICKSTART, "-o", str(output)).returncode == 0
    head = output.read_text().splitlines()
    assert head[1] == "# Rendered by `render-job slurm quickstart.yaml -o 'my job.sh'`; edit the spec, not this file."
    assert "sbatch 'my job.sh'" in head[2]
    assert b"compose -f quickstart.compose.yaml up" in command_line("compose", QUICKSTART, "--set=image=a/b").stdout


def test_output_replaces_a_rendered_file_keeps_its_mode_and_writes_through_links(tmp_path: Path) -> None:
    output, link = tmp_path / "job.sh", tmp_path / "link.sh"
    assert command_line("slurm", QUICKSTART, "-o", str(output)).returncode == 0
    output.chmod(0o750)
    link.symlink_to(output)
    assert command_line("torchrun", QUICKSTART, "-o", str(link)).returncode == 0
    assert b"torchrun --" in output.read_bytes()
    assert link.is_symlink()
    assert output.stat().st_mode & 0o777 == 0o750
    assert sorted(tmp_path.iterdir()) == [output, link]


def test_output_never_replaces_a_file_of_others(tmp_path: Path) -> None:
    output = tmp_path / "job.sh"
    for old in (b"", b"echo mine\n", Path(QUICKSTART).read_bytes()):
        output.write_bytes(old)
        done = command_line("torchrun", QUICKSTART, "-o", str(output))
        assert (done.returncode, output.read_bytes() == old) == ((1, True) if old else (0, False))
    assert done.stderr.decode() == f"{output}: already exists, and render-job did not write it\n"


def test_output_to_a_device_writes_to_it(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE)
    assert command_line("torchrun", QUICKSTART, "-o", str(fifo)).returncode == 0
    assert b" -o fifo`" in reader.communicate()[0]


@pytest.mark.parametrize(
    ("output", "why"),
    [("job.yaml/x", "Not a directory"), ("/dev/full", "No space left on device"), ("x" * 256, "File name too long")],
)
def test_output_that_cannot_be_written_is_named_as_it_was_given(output: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes(Path(QUICKSTART).read_bytes())
    done = command_line("torchrun", "job.yaml", "-o", output, cwd=tmp_path)
    assert (done.returncode, done.stderr.decode().splitlines()[0]) == (1, f"{output}: {why}")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["job.yaml"]


def test_closed_stdin_and_stdout_are_mistakes_and_no_bugs() -> None:
    done = closed("<", "slurm", "-")
    assert (done.returncode, done.stderr) == (1, b"<stdin>: Bad file descriptor\n")
    done = closed(">", "torchrun", QUICKSTART)
    assert (done.returncode, done.stderr) == (1, b"stdout: Bad file descriptor\n")


def test_closed_stderr_leaves_the_artifact_as_it_is(tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text("name: job\nnodes: 1\nprocs_per_node: 1\ntime_limit: 2h\ncommand: [mine.py]\n")
    open_ = command_line("torchrun", str(spec))
    assert open_.stderr.startswith(b"note: ")
    done = closed("2>", "torchrun", str(spec))
    assert (done.returncode, done.stdout) == (0, open_.stdout)


def test_reader_that_goes_away_gives_no_traceback() -> None:
    line = f'"{sys.executable}" "{ROOT}/render.py" schema | head -c 1'
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert done.stderr == b""
