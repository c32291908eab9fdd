"""--config FILE: the keys of a run as YAML, typed like the flags, and every mistake told with its line."""

from pathlib import Path
from typing import Any

import pytest

from train.config import PATHS, TrainConfig
from train.errors import UserError
from train.flags import from_argv


def yaml_file(folder: Path, text: str) -> Path:
    file = folder / "run.yaml"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("lr: 1e-3", "lr", 0.001),
        ("lr: 1", "lr", 1.0),
        ("lr: '0.5'", "lr", 0.5),
        ("epochs: 3  # a comment", "epochs", 3),
        ("sync_batchnorm: no", "sync_batchnorm", False),
        ("sync_batchnorm: false", "sync_batchnorm", False),
        ("sync_batchnorm: on", "sync_batchnorm", True),
        ("data_root: no", "data_root", "no"),
        ("data_root: 012", "data_root", "012"),
        ("data_root: 2026-01-01", "data_root", "2026-01-01"),
        ("data_root: 12:30:00", "data_root", "12:30:00"),
        ("data_root: 'null'", "data_root", "null"),
        ("scheduler: none", "scheduler", "none"),
        ("max_steps:", "max_steps", None),
        ("max_steps: null", "max_steps", None),
        ("dropout: ~", "dropout", None),
    ],
)
def test_yaml_value_is_typed_like_the_flag(tmp_path: Path, line: str, key: str, value: Any) -> None:
    found = getattr(from_argv([f"--config={yaml_file(tmp_path, line)}"]), key)
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize("key", PATHS)
def test_a_leading_tilde_is_the_home_folder_in_flags_and_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    flags = [f"--{key.replace('_', '-')}=~/runs/1"]
    for words in (flags, [f"--config={yaml_file(tmp_path, f'{key}: ~/runs/1')}"]):
        assert getattr(from_argv(words), key) == "/home/somebody/runs/1"


def test_a_leading_tilde_of_the_file_itself_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert from_argv([f"--config=~/{yaml_file(tmp_path, 'epochs: 7').name}"]).epochs == 7


def test_empty_yaml_file_gives_the_defaults(tmp_path: Path) -> None:
    assert from_argv([f"--config={yaml_file(tmp_path, '# nothing yet')}"]) == TrainConfig()


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    file = yaml_file(tmp_path, "lr: 0.5\nepochs: 7\nsync_batchnorm: true\n")
    config = from_argv(["--lr=0.25", f"--config={file}", "--no-sync-batchnorm"])
    assert (config.lr, config.epochs, config.sync_batchnorm) == (0.25, 7, False)


def test_a_flag_mends_a_wrong_value_of_the_file(tmp_path: Path) -> None:
    assert from_argv([f"--config={yaml_file(tmp_path, 'epochs: many')}", "--epochs=2"]).epochs == 2


def test_all_problems_are_named_at_once_each_with_its_place(tmp_path: Path) -> None:
    file = yaml_file(tmp_path, "epochs: 0\nlr: fast\nmodle: mlp\n")
    with pytest.raises(UserError) as refusal:
        from_argv([f"--config={file}", "--dataset=mnst", "--seed=-1"])
    first, *problems = str(refusal.value).splitlines()
    assert first.startswith("5 problems ")
    places = [f"{file}:1: epochs", f"{file}:2: lr", f"{file}:3: modle", "--dataset", "--seed"]
    assert {place for place in places for problem in problems if problem.startswith(f"  {place}: ")} == set(places)
    assert len(problems) == 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr: 1\nepochs: 2\nlr: 2", "run.yaml:3: lr: given twice, first on line 1"),
        ("lr: 1\nbatchsize: 2", 'run.yaml:2: batchsize: unknown key; did you mean "batch_size"?'),
        ("lr: 1\nprocs: 2", "run.yaml:2: procs: --procs is a flag of the command line, and cannot stand in a file"),
        ("- lr\n- epochs\n", "must be a mapping"),
        ("lr", "must be a mapping"),
        ("lr: [1, 2]", "run.yaml:1: lr: the value must be a single word or number"),
        ("epochs: 1\noptimizer: {name: sgd}", "run.yaml:2: optimizer: the value must be a single word or number"),
        ("? [a]\n: 1", "run.yaml:1: a key must be a single word"),
        ("name: job\ntrain: {model: mlp}", "run.yaml:2: train: this is a job spec, for `render-job TARGET "),
        ("train:", "run.yaml:1: train: this is a job spec, for `render-job TARGET "),
        ("lr: 'open", "is not YAML"),
        ("a: 1\n---\nb: 2", "is not YAML"),
        ("lr: *nobody", "is not YAML"),
        ("\t: 1", "is not YAML"),
        ('lr: "\\UFFFFFFFF"', "is not YAML: a number in an escape or"),
        pytest.param("%YAML 1." + "9" * 5000 + "\n---\nlr: 1", "is not YAML: a number in an escape or", id="%YAML"),
        ('lr: 1\n"\\ud800": 1', "run.yaml:2: a key must be a single word"),
        ('run_dir: "\\0"', "run.yaml:1: run_dir: the value holds a zero byte"),
        (f"checkpoint_dir: /tmp/{'a' * 256}", "it must be a path in which each name has at most 255 bytes"),
        ("resume: yes", "it must be never, auto or the path of a checkpoint (./yes for a folder of this name)"),
        ('run_dir: "\\ud800"', 'run.yaml:1: run_dir: "\ud800" is not accepted; it must be text in UTF-8'),
        ("model: mlp\nresume: auto", "run.yaml:2: resume is given but checkpoint_dir is not; say where"),
    ],
)
def test_wrong_key_or_yaml_of_another_form_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError) as refusal:
        from_argv([f"--config={yaml_file(tmp_path, text)}"])
    assert said in str(refusal.value)
    assert "run.yaml" in str(refusal.value)


def test_config_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    binary = tmp_path / "weights.pt"
    binary.write_bytes(b"\x80\x81\xff")
    for file in (tmp_path / "absent.yaml", tmp_path, binary):
        with pytest.raises(UserError) as refusal:
            from_argv([f"--config={file}"])
        assert f"--config: cannot read {file}: " in str(refusal.value)
        assert str(refusal.value).count(str(file)) == 1
