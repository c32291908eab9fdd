"""The command line: exit codes, the artifact and its notes, several files, and files that cannot be read or written."""

import subprocess
import sys
from pathlib import Path

import pytest

import train
from jobspec import commands
from tests.command_line import QUICKSTART, ROOT, command_line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the JSON Schema of the job spec, for editors"),
        (["kubernetes", QUICKSTART], "argument COMMAND: invalid choice: 'kubernetes' (choose from"),
        (["torchrun"], "render-job torchrun: error: the following arguments are required: FILE"),
        (["torchrun", QUICKSTART, "--noes=3"], "render-job torchrun: error: unrecognized arguments: --noes=3\n"),
        (["torchrun", QUICKSTART, "--sweep-index", "one"], "--sweep-index: invalid int value: 'one'\n"),
        (["torchrun", QUICKSTART, "-o", "-"], "error: -o - names no file; without -o, the output goes to stdout\n"),
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
        (["torchrun", "none/job.yaml"], "none/job.yaml: No such file or directory\n"),
        (["torchrun", "."], ".: Is a directory\n"),
        (["torchrun", "/proc/self/mem"], "/proc/self/mem: Input/output error\n"),  # opens, and cannot be read
        (["torchrun", "job.yaml", "-o", "none/job.sh"], "none/job.sh: No such file or directory\n"),
    ],
)
def test_file_that_cannot_be_read_or_written_is_exit_1_with_its_name(
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


def test_same_bytes_in_any_encoding(tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text('name: job\nnodes: 2\nprocs_per_node: 2\ncommand: [mine.py, "größe 図"]\n', encoding="utf-8")
    made = command_line("torchrun", str(spec), LC_ALL="C", PYTHONIOENCODING="latin-1").stdout
    assert made == command_line("torchrun", str(spec)).stdout
    assert "größe 図".encode() in made


def test_plugins_of_pydantic_do_not_see_the_spec(tmp_path: Path) -> None:
    installed = tmp_path / "plugin-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1\n")
    (installed / "entry_points.txt").write_text("[pydantic]\nplugin = plugin:nothing\n")
    (tmp_path / "plugin.py").write_text("open(__file__ + '.loaded', 'w').close()\nnothing = None\n")
    assert command_line("torchrun", QUICKSTART, PYTHONPATH=str(tmp_path)).returncode == 0
    assert not (tmp_path / "plugin.py.loaded").exists()


def test_wrong_spec_is_exit_1_and_leaves_the_output_as_it_was(tmp_path: Path) -> None:
    output = tmp_path / "job.sh"
    command_line("torchrun", QUICKSTART, "-o", str(output))
    old = output.read_bytes()
    done = command_line("torchrun", QUICKSTART, "--set", "nodes=0", "-o", str(output))
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"--set nodes=0:1:7: nodes must be")
    assert output.read_bytes() == old
    assert list(tmp_path.iterdir()) == [output]


def test_at_most_20_problems_are_printed(tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text("name: job\nnodes: 1\nprocs_per_node: 1\n" + "".join(f"key{n}: 1\n" for n in range(30)))
    said = command_line("torchrun", str(spec)).stderr.decode()
    count = int(said.splitlines()[-1].split()[0])
    assert count >= 30
    assert said.count(f"{spec}:") == 20
    assert f"\n… and {count - 20} more\n" in said


def test_what_a_target_leaves_out_is_a_note_on_stderr_and_in_the_artifact(tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text(
        "name: job\nnodes: 1\nprocs_per_node: 1\nimage: train:1\ntime_limit: 2h\n"
        'command: [mine.py, "a\\n# Not used here: b"]\n'
    )
    done = command_line("torchrun", str(spec))
    notes = [
        "Not used here: image; this script runs in the shell's own environment, not in a container.",
        "Not used here: time_limit; torchrun has no time limit.",
    ]
    assert (done.returncode, done.stderr.decode().splitlines()) == (0, [f"note: {note}" for note in notes])
    assert all(f"# {note}\n" in done.stdout.decode() for note in notes)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    file = tmp_path / "site.yaml"
    file.write_text("slurm: {partition: gpu}\nenv: {NOTE: ours}\n+secrets: [TOKEN]\n")
    return file


def test_files_are_merged_and_named_in_the_header_wherever_they_stand_in_the_command(site: Path) -> None:
    made = command_line("slurm", QUICKSTART, str(site), "--set", "env.NOTE=mine").stdout.decode()
    assert made.splitlines()[1].startswith(
        "# Rendered by `render-job slurm quickstart.yaml site.yaml --set env.NOTE=mine`;"
    )
    assert "#SBATCH --partition=gpu\n" in made
    assert "NOTE=mine" in made and "ours" not in made
    assert command_line("slurm", QUICKSTART, "--set", "env.NOTE=mine", str(site)).stdout.decode() == made


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


def test_files_with_different_names_are_noted(tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    for name, noted in (("other", True), ("quickstart", False)):
        other.write_text(f"name: {name}\n")
        said = command_line("torchrun", QUICKSTART, str(other)).stderr.decode()
        assert (f'"quickstart" in {QUICKSTART}:3, "other" in {other}:1\n' in said) == noted
        assert said.startswith("note: these files become one job, but give different names") == noted
