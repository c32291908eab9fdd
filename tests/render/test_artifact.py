"""render-job TARGET: the artifact, its notes, and what a wrong spec is told."""

from pathlib import Path

from tests.render.command import QUICKSTART, command_line


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
