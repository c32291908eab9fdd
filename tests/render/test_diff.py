"""render.py diff: exit code and difference."""

from pathlib import Path

from tests.render.command import QUICKSTART, command_line


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
    said = f"{tmp_path}/none: No such file or directory\n"
    assert (done.returncode, done.stdout, done.stderr.decode()) == (1, b"", said)
    done = command_line("diff", QUICKSTART, QUICKSTART, "--target", "torchrun", "--set", "nodes=0")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"--set nodes=0:1:7: nodes must be")


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
