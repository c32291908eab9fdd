"""TrainConfig: the same keys as flags and as YAML, typed alike, and every problem told at once with its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from annotated_types import Ge, Gt, Le, Lt
from hypothesis import given
from hypothesis import strategies as st

from train.config import TrainConfig, available, flag, from_argv, nearest, to_argv
from train.errors import UserError

ROOT = Path(__file__).parents[2]
KEYS = sorted(TrainConfig.model_fields)
FOLDERS = {"model": "models", "dataset": "datasets", "strategy": "strategies", "sync": "sync"}
# What a person may write, but for NUL, which no argument can hold, and lone surrogates, which are no text.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)


def kinds(key: str) -> tuple[Any, ...]:
    """The types that a key accepts, without None."""
    annotation = TrainConfig.model_fields[key].annotation
    if get_origin(annotation) is Literal or annotation in (bool, int, float, str):
        return (annotation,)
    return tuple(kind for kind in get_args(annotation) if kind is not type(None))


def values(key: str) -> st.SearchStrategy[Any]:
    """Accepted values of a key, read from its type and limits, so that a new key is tested by itself."""
    field = TrainConfig.model_fields[key]
    (kind,) = kinds(key)
    limit = {type(rule): rule for rule in field.metadata}
    lower, upper = limit.get(Ge) or limit.get(Gt), limit.get(Le) or limit.get(Lt)
    low = getattr(lower, "ge", getattr(lower, "gt", None))
    high = getattr(upper, "le", getattr(upper, "lt", None))
    if key in FOLDERS:
        found: st.SearchStrategy[Any] = st.sampled_from(available(FOLDERS[key]))
    elif get_origin(kind) is Literal:
        found = st.sampled_from(get_args(kind))
    elif kind is bool:
        found = st.booleans()
    elif kind is int:
        # No int is a float's limit here, so an excluded limit is the next whole number.
        found = st.integers(
            None if low is None else int(low) + isinstance(lower, Gt),
            None if high is None else int(high) - isinstance(upper, Lt),
        )
    elif kind is float:
        found = st.floats(
            low,
            high,
            exclude_min=isinstance(lower, Gt),
            exclude_max=isinstance(upper, Lt),
            allow_nan=False,
            allow_infinity=False,
        )
    else:
        found = TEXT
    return found | st.none() if field.default is None else found


@st.composite
def configs(draw: st.DrawFn) -> TrainConfig:
    drawn = {key: draw(values(key), label=key) for key in KEYS}
    if drawn["checkpoint_dir"] is None:
        drawn |= {"checkpoint_every": 0, "resume": "never"}
    if drawn["strategy"] != "custom_ddp":
        drawn["sync"] = "all_reduce"
    return TrainConfig.model_validate(drawn)


@given(config=configs())
def test_flags_of_a_config_give_the_same_config(config: TrainConfig) -> None:
    assert from_argv(to_argv(config.model_dump())) == config


@given(config=configs())
def test_yaml_file_of_a_config_gives_the_same_config(
    tmp_path_factory: pytest.TempPathFactory, config: TrainConfig
) -> None:
    file = tmp_path_factory.getbasetemp() / "config.yaml"
    file.write_text(yaml.safe_dump(config.model_dump()), encoding="utf-8")
    assert from_argv([f"--config={file}"]) == config


@given(config=configs())
def test_flags_of_a_json_copy_give_the_same_config(config: TrainConfig) -> None:
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config


def test_no_flags_give_the_defaults() -> None:
    assert from_argv([]) == TrainConfig()


@pytest.mark.parametrize("key", KEYS)
def test_every_key_has_a_description_and_a_flag_in_the_help(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    description = TrainConfig.model_fields[key].description
    assert description
    with pytest.raises(SystemExit) as end:
        from_argv(["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert f"{flag(key)} " in shown or f"{flag(key)}," in shown
    assert "".join(description.split()) in "".join(shown.split())


@pytest.mark.parametrize("key", [key for key in KEYS if kinds(key) != (str,)])
def test_every_typed_key_refuses_another_type_and_names_its_flag(key: str) -> None:
    if kinds(key) == (bool,):
        with pytest.raises(UserError, match=f"argument .*{flag(key)}"):
            from_argv([f"{flag(key)}=maybe"])
    else:
        with pytest.raises(UserError, match=f'{flag(key)}: "maybe" is not accepted; '):
            from_argv([f"{flag(key)}=maybe"])


@pytest.mark.parametrize("key", [key for key in KEYS if kinds(key) == (float,)])
def test_every_number_refuses_nan(key: str) -> None:
    with pytest.raises(UserError, match=flag(key)):
        from_argv([f"{flag(key)}=nan"])


@pytest.mark.parametrize(
    "argument",
    [
        "--epochs=0",
        "--batch-size=0",
        "--batch-size=2.5",
        "--accumulate=0",
        "--lr=0",
        "--lr=-1",
        "--lr=inf",
        "--momentum=1",
        "--dropout=1",
        "--clip-norm=0",
        "--seed=-1",
        f"--seed={2**32}",
        "--lr-gamma=1.1",
        "--keep-checkpoints=0",
        "--checkpoint-every=-1",
    ],
)
def test_value_out_of_range_is_refused_with_its_flag_and_value(argument: str) -> None:
    name, value = argument.split("=")
    with pytest.raises(UserError) as refusal:
        from_argv([argument])
    assert f'\n  {name}: "{value}" is not accepted; ' in str(refusal.value)


def test_values_that_begin_with_a_dash_or_hold_spaces_survive() -> None:
    config = TrainConfig(run_dir="-x y $HOME 'q' \"r\"\n", data_root="--lr=5")
    assert from_argv(to_argv(config.model_dump())) == config


def test_abbreviated_flags_are_refused() -> None:
    with pytest.raises(UserError, match=r"--epoch: unknown flag; did you mean --epochs\?"):
        from_argv(["--epoch=3"])


def test_negated_flag_turns_a_switch_off() -> None:
    assert from_argv(["--no-sync-batchnorm"]).sync_batchnorm is False
    assert from_argv(["--sync-batchnorm"]).sync_batchnorm is True


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


def test_empty_yaml_file_gives_the_defaults(tmp_path: Path) -> None:
    assert from_argv([f"--config={yaml_file(tmp_path, '# nothing yet')}"]) == TrainConfig()


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    file = yaml_file(tmp_path, "lr: 0.5\nepochs: 7\nsync_batchnorm: true\n")
    config = from_argv(["--lr=0.25", f"--config={file}", "--no-sync-batchnorm"])
    assert (config.lr, config.epochs, config.sync_batchnorm) == (0.25, 7, False)


def test_a_flag_mends_a_wrong_value_of_the_file(tmp_path: Path) -> None:
    assert from_argv([f"--config={yaml_file(tmp_path, 'epochs: many')}", "--epochs=2"]).epochs == 2


def test_duplicate_yaml_key_names_both_lines(tmp_path: Path) -> None:
    file = yaml_file(tmp_path, "lr: 1\nepochs: 2\nlr: 2\n")
    with pytest.raises(UserError) as refusal:
        from_argv([f"--config={file}"])
    assert f"{file}:3: lr: given twice, first on line 1" in str(refusal.value)


def test_unknown_yaml_key_names_its_line_and_the_nearest_key(tmp_path: Path) -> None:
    file = yaml_file(tmp_path, "lr: 1\nbatchsize: 2\n")
    with pytest.raises(UserError) as refusal:
        from_argv([f"--config={file}"])
    assert f'{file}:2: batchsize: unknown key; did you mean "batch_size"?' in str(refusal.value)


@pytest.mark.parametrize(("kind", "folder"), FOLDERS.items())
def test_unknown_file_name_is_answered_with_the_nearest_and_all_allowed(kind: str, folder: str) -> None:
    for name in available(folder):
        with pytest.raises(UserError) as refusal:
            from_argv([f"--{kind}={name}x"])
        message = str(refusal.value)
        assert f'--{kind}: "{name}x" is not one of ' in message
        assert f'; did you mean "{name}"?' in message
        assert all(allowed in message for allowed in available(folder))


def test_a_name_like_no_other_gets_no_suggestion() -> None:
    assert nearest("zzzz", available("models")) is None
    with pytest.raises(UserError) as refusal:
        from_argv(["--model=zzzz"])
    assert "did you mean" not in str(refusal.value)


def test_names_that_lead_out_of_the_folder_are_refused() -> None:
    for name in ("../config", "__init__", "mlp.py", ""):
        with pytest.raises(UserError, match="--model: "):
            from_argv([f"--model={name}"])


def test_all_problems_are_told_at_once_each_with_its_place(tmp_path: Path) -> None:
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
        ("- lr\n- epochs\n", "must be a mapping"),
        ("lr", "must be a mapping"),
        ("lr: [1, 2]", "run.yaml:1: the value must be a single word or number"),
        ("epochs: 1\noptimizer: {name: sgd}", "run.yaml:2: the value must be a single word or number"),
        ("lr: 'open", "is not YAML"),
        ("a: 1\n---\nb: 2", "is not YAML"),
        ("lr: *nobody", "is not YAML"),
        ("\t: 1", "is not YAML"),
    ],
)
def test_yaml_of_another_form_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
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


@pytest.mark.parametrize("arguments", [["--resume=auto"], ["--checkpoint-every=5"]])
def test_checkpoint_settings_without_a_folder_are_refused(arguments: list[str]) -> None:
    with pytest.raises(UserError, match="checkpoint_dir"):
        from_argv(arguments)
    from_argv([*arguments, "--checkpoint-dir=here"])


def test_every_file_in_a_folder_is_a_name_that_is_accepted() -> None:
    for kind, folder in FOLDERS.items():
        files = {file.stem for file in (ROOT / "train" / folder).iterdir() if file.suffix == ".py"} - {"__init__"}
        assert set(available(folder)) == files
        assert all(getattr(from_argv([f"--{kind}={name}"]), kind) == name for name in files)


@pytest.mark.parametrize("module", ["train", "train.config", "train.world", "train.shard", "train.buckets"])
def test_module_is_imported_without_torch(module: str) -> None:
    code = f"import sys, {module}; assert not {{'torch', 'torchvision', 'numpy'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_unknown_flags_and_wrong_values_are_reported_together() -> None:
    with pytest.raises(UserError) as caught:
        from_argv(["--batchsize=3", "--epochs=0", "--model=resnet81"])
    message = str(caught.value)
    assert message.startswith("3 problems with the settings")
    assert "--batchsize: unknown flag; did you mean --batch-size?" in message
    assert '--epochs: "0" is not accepted' in message
    assert 'did you mean "resnet18"?' in message
