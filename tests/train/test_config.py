"""TrainConfig and its flags: every key has one, and every problem is told at once with its flag."""

from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train.checkpoints.same_run import refuse_other_run
from train.config import PATHS, TrainConfig, available, choices, flag, to_argv
from train.errors import UserError
from train.flags import from_argv

KEYS = sorted(TrainConfig.model_fields)
FOLDERS = {"model": "models", "dataset": "datasets", "strategy": "strategies", "sync": "sync"}
# What a person may write, but for NUL, which no argument can hold, lone surrogates, which are no text, and ~.
_ANY = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0~"), min_size=1, max_size=20)
TEXT = _ANY | st.sampled_from(["-x y $HOME 'q' \"r\"\n", "--lr=5"])


def kinds(key: str) -> tuple[Any, ...]:
    """The types that a key accepts, without None."""
    annotation = TrainConfig.model_fields[key].annotation
    if get_origin(annotation) is Literal or annotation in (bool, int, float, str):
        return (annotation,)
    return tuple(kind for kind in get_args(annotation) if kind is not type(None))


def another(key: str) -> Any:
    """A value that is not the default of the key, so that a new key is tested by itself."""
    (kind,), default = kinds(key), TrainConfig.model_fields[key].default
    if key in FOLDERS:
        return [name for name in available(FOLDERS[key]) if name not in (default, "tokens")][-1]
    if get_origin(kind) is Literal:
        return get_args(kind)[-1]
    if kind is bool:
        return not default
    numbers = {int: 3, float: 1.0 if key.endswith("_s") else 0.125}
    return numbers.get(kind, "2:5")  # profiled steps, or a path


@settings(max_examples=5)
@given(text=TEXT)
@pytest.mark.parametrize("key", KEYS)
def test_the_flags_and_a_json_copy_of_a_config_give_the_same_config(key: str, text: str) -> None:
    needed: dict[str, Any] = {"run_dir": text, "checkpoint_dir": text, "resume": "auto"}
    needed |= {"logical_world": 2} if key == "log_slices" else {}
    config = TrainConfig.model_validate(needed | {key: another(key)})
    assert getattr(config, key) != TrainConfig.model_fields[key].default
    assert from_argv(to_argv(config.model_dump())) == config
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--optimizer=adam --momentum=0.9", "momentum is 0.9, but optimizer is adam; only sgd has this setting"),
        ("--resume=auto", "resume is given but checkpoint_dir is not"),
        ("--checkpoint-every=5", "checkpoint_every is given but checkpoint_dir is not"),
        ("--tensorboard", "tensorboard is given but run_dir is not"),
        ("--strategy=ddp --sync=bf16", "sync is bf16, which strategy ddp does not support; only custom_ddp does"),
    ],
)
def test_a_setting_without_effect_is_refused(flag: str, message: str) -> None:
    with pytest.raises(UserError) as refusal:
        from_argv(flag.split())
    assert message in str(refusal.value).replace("-", "_").replace("__", "")


@pytest.mark.parametrize(
    "flags", ["--clip-norm=1", "--no-sync-batchnorm", "--deterministic", "--max-steps=5 --scheduler=cosine", "--seed=5"]
)
def test_a_run_resumed_with_another_value_is_refused_and_the_setting_named(flags: str) -> None:
    now = from_argv(flags.split())
    key = flags.split("=")[0].replace("--no", "").strip("-").replace("-", "_")
    with pytest.raises(UserError, match=f"another run: {key} was"):
        refuse_other_run(now.model_dump() | {key: TrainConfig.model_fields[key].default}, now)
    for free in ("--strategy=ddp", "--sync=bf16", "--accumulate=2", "--data-root=elsewhere"):
        refuse_other_run(TrainConfig().model_dump(), from_argv([free]))


def test_every_key_has_a_description_and_a_flag_in_the_help_whose_groups_are_in_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as end:
        from_argv(["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    for key in KEYS:
        description = TrainConfig.model_fields[key].description
        assert description, key
        assert f"{flag(key)} " in shown or f"{flag(key)}," in shown
        assert "".join(description.split()) in "".join(shown.split())
        assert ", ".join(choices(key)) in " ".join(shown.split())
    titles = [line for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    groups = ["model and data", "training", "processes and devices", "records and checkpoints", "timeouts"]
    assert titles == ["options:", *(f"{group}:" for group in groups)]


@pytest.mark.parametrize("key", [key for key in KEYS if kinds(key) != (str,)])
def test_every_typed_key_refuses_another_type_and_nan_and_names_its_flag(key: str) -> None:
    said = f"argument .*{flag(key)}" if kinds(key) == (bool,) else f'{flag(key)}: "maybe" is not accepted; '
    with pytest.raises(UserError, match=said):
        from_argv([f"{flag(key)}=maybe"])
    with pytest.raises(UserError, match=flag(key)):
        from_argv([f"{flag(key)}=nan"])


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--epochs=0", "it must be above 0"),
        ("--batch-size=2.5", "it must be a whole number"),
        (f"--batch-size={10**18}", "it must be at most 1000000000000"),
        ("--lr=fast", "it must be a number"),
        ("--lr=1e39", "it must be at most 1e+30"),
        ("--seed=-1", "it must be at least 0"),
        ("--dropout=1", "it must be below 1"),
        pytest.param(f"--epochs={10**400}", "it must be at most 1000000000000", id="above every float"),
        pytest.param("--profile=2:" + "9" * 5000, "it must be steps FIRST:LAST, with 2 <= FIRST <= LAST", id="profile"),
        pytest.param("--epochs=" + "9" * 5000, "it must be a whole number with fewer digits", id="too long for int"),
        ("--collective-timeout-s=inf", "it must be at most 31536000"),
        ("--run-dir=\udcff", "it must be text in UTF-8"),
        ("--lr=inf", "it must be a finite number"),
        ("--data-root=", "it must be text of at least 1 character"),
        ("--optimizer=sgdd", 'it must be "sgd", "adam", "adamw" or "adadelta"; did you mean "sgd"?'),
        ("--precision=half", 'it must be "fp32", "tf32", "bf16" or "fp16"'),
        ("--resume=yes", "it must be never, auto or the path of a checkpoint (./yes for a folder of this name)"),
    ],
)
def test_what_a_value_must_be_is_said_in_plain_words(argument: str, said: str) -> None:
    name, value = argument.split("=")
    with pytest.raises(UserError) as refusal:
        from_argv([argument])
    assert str(refusal.value).splitlines()[1] == f'  {name}: "{value}" is not accepted; {said}'


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mnist", "resnet18"], ["mnist: no flag takes this word", "resnet18: no flag takes this word"]),
        (["--proc=2"], ["--proc: unknown flag; did you mean --procs?"]),
        (["--run-dir", "my", "run", "dir"], ["run: no flag takes this word", "dir: no flag takes this word"]),
        (
            ["--compile", "false", "--no-sync-batchnorm", "false", "--epochs=0"],
            [
                "false: no flag takes this word: --NAME and --no-NAME stand alone",
                "false: no flag takes this word: --NAME and --no-NAME stand alone",
                '--epochs: "0" is not accepted',
            ],
        ),
        (
            ["--batchsize=3", "4", "--epochs=0"],
            ["--batchsize: unknown flag; did you mean --batch-size?", "4: no flag", '--epochs: "0" is not accepted'],
        ),
    ],
)
def test_every_word_that_no_flag_takes_is_refused(words: list[str], said: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        from_argv(words)
    first, *lines = str(refusal.value).splitlines()
    assert first.startswith(f"{len(said)} problem")
    assert len(lines) == len(said)
    assert all(line.startswith(f"  {start}") for line, start in zip(lines, said, strict=True))


@pytest.mark.parametrize(("kind", "folder"), FOLDERS.items())
def test_unknown_file_name_is_answered_with_the_nearest_and_all_allowed(kind: str, folder: str) -> None:
    for name in available(folder):
        with pytest.raises(UserError) as refusal:
            from_argv([f"--{kind}={name}x"])
        message = str(refusal.value)
        assert f'--{kind}: "{name}x" is not one of ' in message
        assert f'; did you mean "{name}"?' in message
        assert all(allowed in message for allowed in available(folder))


def test_names_that_lead_out_of_the_folder_or_are_no_text_are_refused() -> None:
    for name in ("../config", "__init__", "mlp.py", "", "\udcff"):  # the last is no text
        with pytest.raises(UserError, match="--model: ") as refusal:
            from_argv([f"--model={name}"])
    assert '"\\udcff" is not one of ' in str(refusal.value)


@pytest.mark.parametrize("key", PATHS)
def test_a_leading_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    given = [f"{flag(key)}=~/runs/1", *(["--checkpoint-dir=a"] if key == "resume" else [])]
    assert getattr(from_argv(given), key) == "/home/somebody/runs/1"
