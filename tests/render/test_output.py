"""-o and the standard streams: what is replaced, and what never is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.render.command import QUICKSTART, ROOT, SITE, closed, command_line


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


@pytest.mark.parametrize(
    "words",
    [["torchrun", QUICKSTART], ["schema"], ["explain", QUICKSTART, "--target=slurm"]],
    ids=lambda words: words[0],
)
def test_output_replaces_a_file_of_others_only_by_force(words: list[str], tmp_path: Path) -> None:
    output = tmp_path / "job.sh"
    output.write_text("echo mine\n")
    done = command_line(*words, "-o", str(output))
    assert (done.returncode, output.read_text()) == (1, "echo mine\n")
    said = f"{output}: already exists, and render.py did not write it\n  hint: --force replaces it\n"
    assert done.stderr.decode().endswith(said)
    done = command_line(*words, "-o", str(output), "--force")
    assert output.read_bytes() == command_line(*words).stdout


@pytest.mark.parametrize("words", [["torchrun"], ["torchrun", "--force"], ["explain", "--target=torchrun"]])
def test_output_never_replaces_the_spec(words: list[str], tmp_path: Path) -> None:
    spec, link = tmp_path / "job.yaml", tmp_path / "link.yaml"
    spec.write_bytes(Path(QUICKSTART).read_bytes())
    link.symlink_to(spec)
    for output in (spec, link):
        done = command_line(*words, str(spec), "-o", str(output))
        assert (done.returncode, spec.read_bytes()) == (1, Path(QUICKSTART).read_bytes())
        assert b"is read by this command" in done.stderr


def test_output_never_replaces_any_file_of_the_spec(site: Path) -> None:
    for files in ([QUICKSTART, str(site)], [str(site), QUICKSTART]):
        done = command_line("slurm", *files, "-o", str(site), "--force")
        assert (done.returncode, site.read_text()) == (1, SITE)
        assert b"is read by this command" in done.stderr


def test_output_never_replaces_what_diff_reads(tmp_path: Path) -> None:
    artifact = tmp_path / "job.sh"
    artifact.write_bytes(command_line("slurm", QUICKSTART).stdout)
    diff = ["diff", QUICKSTART, str(artifact), "--target", "slurm", "-o", str(artifact)]
    for force in ([], ["--force"]):
        before = artifact.read_bytes()
        done = command_line(*diff, *force)
        assert (done.returncode, done.stdout, artifact.read_bytes()) == (1, b"", before)
        assert done.stderr.endswith(
            b": is read by this command, and -o must not replace it\n  hint: name another file\n"
        )


def test_output_to_a_dash_is_stdout(tmp_path: Path) -> None:
    done = command_line("torchrun", QUICKSTART, "-o", "-", cwd=tmp_path)
    assert done.stdout == command_line("torchrun", QUICKSTART).stdout
    assert not list(tmp_path.iterdir())


def test_output_to_a_device_writes_to_it(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE)
    assert command_line("torchrun", QUICKSTART, "-o", str(fifo)).returncode == 0
    assert reader.communicate(timeout=10)[0] == command_line("torchrun", QUICKSTART).stdout


@pytest.mark.parametrize(
    ("output", "why"),
    [("job.yaml/x", "Not a directory"), ("/dev/full", "No space left on device"), ("x" * 256, "File name too long")],
)
def test_output_that_cannot_be_written_is_named_as_it_was_given(output: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes(Path(QUICKSTART).read_bytes())
    done = command_line("torchrun", "job.yaml", "-o", output, cwd=tmp_path)
    assert (done.returncode, done.stderr.decode().splitlines()[0]) == (1, f"{output}: {why}")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["job.yaml"]


def test_output_may_have_the_longest_name(tmp_path: Path) -> None:
    output = tmp_path / ("x" * 255)
    assert command_line("torchrun", QUICKSTART, "-o", str(output)).returncode == 0
    assert output.read_bytes() == command_line("torchrun", QUICKSTART).stdout


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


def test_reader_that_goes_away_gives_no_traceback() -> None:
    line = f'"{sys.executable}" "{ROOT}/render.py" schema | head -c 1'
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert done.stderr == b""
