"""TrainConfig: the same keys as flags and as YAML, typed alike, and every problem told at once with its place."""

import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from annotated_types import Ge, Gt, Le, Lt
from hypothesis import given
from hypothesis import strategies as st

from train.checkpoints.same_run import refuse_other_run
from train.config import TrainConfig, available, choices, flag, nearest, to_argv
from train.contradictions import _EXACT, _ONLY
from train.errors import UserError
from train.flags import from_argv

ROOT = Path(__file__).parents[2]
KEYS = sorted(TrainConfig.model_fields)
FOLDERS = {"model": "models", "dataset": "datasets", "strategy": "strategies", "sync": "sync"}
# What a person may write, but for NUL, which no argument can hold, and lone surrogates, which are no text.
# No ~, which becomes the home folder in a path.
_ANY = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0~"), min_size=1, max_size=20)
TEXT = _ANY | st.sampled_from(["-x y $HOME 'q' \"r\"\n", "--lr=5"])


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
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        refused: Any = extra.get("not", {"enum": []})
        found = TEXT.filter(lambda text: text.lower() not in refused["enum"])
    return found | st.none() if field.default is None else found


@st.composite
def configs(draw: st.DrawFn) -> TrainConfig:
    drawn = {key: draw(values(key), label=key) for key in KEYS}
    if drawn["checkpoint_dir"] is None:
        drawn |= {"checkpoint_every": 0, "resume": "never", "keep_checkpoints": 3}
    if drawn["resume"] == "never":
        drawn["evaluate_only"] = False
    if (drawn["model"] == "gpt") != (drawn["dataset"] == "tokens"):
        drawn |= {"model": "gpt", "dataset": "tokens"}
    if drawn["strategy"] != "custom_ddp":
        drawn["sync"] = "all_reduce"
    if drawn["logical_world"] is not None:
        drawn |= {key: only for key, only, _ in _EXACT}
    if drawn["strategy"] not in ("custom_ddp", "ddp"):
        drawn["bucket_mib"] = 25.0
    # Texts with a form of their own, and what needs a folder.
    profiles = drawn["run_dir"] is not None and not drawn["evaluate_only"] and draw(st.booleans())
    drawn |= {"profile": "2:5", "profile_ranks": "all"} if profiles else {"profile": None, "profile_ranks": "0"}
    drawn["tensorboard"] &= drawn["run_dir"] is not None
    drawn["log_slices"] &= drawn["run_dir"] is not None and drawn["logical_world"] is not None
    drawn |= {
        key: TrainConfig.model_fields[key].default for key, (other, only) in _ONLY.items() if drawn[other] != only
    }
    if drawn["strategy"] in ("fsdp", "pipeline"):
        drawn |= {"precision": "fp32", "ema": None, "compile": False, "on_oom": "stop"}
    return TrainConfig.model_validate(drawn)


@given(config=configs())
def test_flags_a_yaml_file_and_a_json_copy_of_a_config_give_the_same_config(
    tmp_path_factory: pytest.TempPathFactory, config: TrainConfig
) -> None:
    assert from_argv(to_argv(config.model_dump())) == config
    file = tmp_path_factory.getbasetemp() / "config.yaml"
    file.write_text(yaml.safe_dump(config.model_dump()), encoding="utf-8")
    assert from_argv([f"--config={file}"]) == config
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--optimizer=adam --momentum=0.9", "momentum is 0.9, but optimizer is adam; only sgd has this setting"),
        ("--lr-gamma=0.5", "lr_gamma is 0.5, but scheduler is none; only step has this setting"),
        ("--strategy=hook_per_parameter --bucket-mib=1", "bucket_mib is 1.0, but strategy is hook_per_parameter; cust"),
        ("--strategy=fsdp --bucket-mib=1", "bucket_mib is 1.0, but strategy is fsdp; custom_ddp, ddp, and fsdp"),
        ("--resume=auto", "resume is given but checkpoint_dir is not"),
        ("--checkpoint-every=5", "checkpoint_every is given but checkpoint_dir is not"),
        ("--keep-checkpoints=1", "keep_checkpoints is given but checkpoint_dir is not"),
        ("--tensorboard", "tensorboard is given but run_dir is not"),
        ("--profile-ranks=all", "profile_ranks is given but profile is not; say which steps to profile"),
        ("--evaluate-only --resume=a --run-dir=b --profile=2:3", "profile is given, but with evaluate_only there are"),
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


def test_help_lists_the_values_of_a_setting_that_has_few() -> None:
    assert choices("sync") == available("sync")
    assert choices("precision") == ["fp32", "tf32", "bf16", "fp16"]
    assert choices("epochs") == choices("device_") == []


@pytest.mark.parametrize("key", [key for key in KEYS if kinds(key) != (str,)])
def test_every_typed_key_refuses_another_type_and_nan_and_names_its_flag(key: str) -> None:
    said = f"argument .*{flag(key)}" if kinds(key) == (bool,) else f'{flag(key)}: "maybe" is not accepted; '
    with pytest.raises(UserError, match=said):
        from_argv([f"{flag(key)}=maybe"])
    with pytest.raises(UserError, match=flag(key)):
        from_argv([f"{flag(key)}=nan"])


_OUT_OF_RANGE = f"""
    --epochs=0 --batch-size=0 --batch-size=2.5 --accumulate=0 --lr=0 --lr=-1 --momentum=1 --clip-norm=0 --seed=-1
    --seed={2**32} --lr-gamma=1.1 --keep-checkpoints=0 --checkpoint-every=-1 --rendezvous-timeout-s=inf
    --rendezvous-timeout-s=0.9 --collective-timeout-s=1e-9 --rendezvous-timeout-s=1e15 --collective-timeout-s=1e15
    --batch-size={10**18} --workers={10**9} --lr=1e39 --weight-decay=1e300
"""


@pytest.mark.parametrize(
    "argument",
    [
        *_OUT_OF_RANGE.split(),
        pytest.param(f"--epochs={10**400}", id="epochs above every float"),
        pytest.param(f"--warmup-steps={10**400}", id="warmup-steps above every float"),
        pytest.param("--profile=2:" + "9" * 5000, id="profile too long for int"),
        pytest.param("--profile-ranks=" + "9" * 5000, id="profile-ranks too long for int"),
    ],
)
def test_value_out_of_range_is_refused_with_its_flag_and_value(argument: str) -> None:
    name, value = argument.split("=")
    with pytest.raises(UserError) as refusal:
        from_argv([argument])
    assert f'\n  {name}: "{value}" is not accepted; ' in str(refusal.value)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--lr=fast", "it must be a number"),
        ("--epochs=2.5", "it must be a whole number"),
        ("--epochs=many", "it must be a whole number"),
        ("--dropout=1", "it must be below 1"),
        pytest.param("--epochs=" + "9" * 5000, "it must be a whole number with fewer digits", id="too long for int"),
        ("--collective-timeout-s=inf", "it must be at most 31536000"),
        ("--run-dir=\udcff", "it must be text in UTF-8"),
        ("--lr=inf", "it must be a finite number"),
        ("--data-root=", "it must be text of at least 1 character"),
        ("--optimizer=sgdd", 'it must be "sgd", "adam", "adamw" or "adadelta"; did you mean "sgd"?'),
        ("--precision=half", 'it must be "fp32", "tf32", "bf16" or "fp16"'),
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
        (["mnist"], ["mnist: no flag comes before it"]),
        (["mnist", "resnet18"], ["mnist: no flag comes before it", "resnet18: no flag comes before it"]),
        (["--run-dir", "my", "run", "dir"], ["run: no flag comes before it", "dir: no flag comes before it"]),
        (
            ["--compile", "false", "--no-sync-batchnorm", "false", "--epochs=0"],
            [
                "false: --compile takes no value; write --compile or --no-compile alone",
                "false: --no-sync-batchnorm takes no value; write --sync-batchnorm or --no-sync-batchnorm alone",
                '--epochs: "0" is not accepted',
            ],
        ),
        (
            ["--batchsize", "3", "4", "--epochs=0"],
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


def test_abbreviated_flags_are_refused() -> None:
    with pytest.raises(UserError, match=r"--proc: unknown flag; did you mean --procs\?"):
        from_argv(["--proc=2"])


@pytest.mark.parametrize(("kind", "folder"), FOLDERS.items())
def test_unknown_file_name_is_answered_with_the_nearest_and_all_allowed(kind: str, folder: str) -> None:
    for name in available(folder):
        with pytest.raises(UserError) as refusal:
            from_argv([f"--{kind}={name}x"])
        message = str(refusal.value)
        assert f'--{kind}: "{name}x" is not one of ' in message
        assert f'; did you mean "{name}"?' in message
        assert all(allowed in message for allowed in available(folder))


@pytest.mark.parametrize("names", ["fsdp,pipeline", "fsdp+pipeline", "pipeline x fsdp"])
def test_two_strategies_at_once_are_refused_with_the_reason(names: str) -> None:
    with pytest.raises(UserError) as refusal:
        from_argv([f"--strategy={names}"])
    _, line = str(refusal.value).splitlines()
    assert line.startswith(f'  --strategy: "{names}" is not accepted; it must be a single name (')
    assert line.endswith("two, such as pipeline and fsdp, cannot be combined)")


def test_a_name_like_no_other_gets_no_suggestion() -> None:
    assert nearest("zzzz", available("models")) is None
    with pytest.raises(UserError) as refusal:
        from_argv(["--model=zzzz"])
    assert "did you mean" not in str(refusal.value)


def test_names_that_lead_out_of_the_folder_or_are_no_text_are_refused() -> None:
    for name in ("../config", "__init__", "mlp.py", "", "\udcff"):  # the last is no text
        with pytest.raises(UserError, match="--model: ") as refusal:
            from_argv([f"--model={name}"])
    assert '"\\udcff" is not one of ' in str(refusal.value)


def test_every_file_in_a_folder_is_a_name_that_is_accepted() -> None:
    for kind, folder in FOLDERS.items():
        files = {file.stem for file in (ROOT / "train" / folder).glob("[!_]*.py")}
        assert set(available(folder)) == files
        goes_with = {"gpt": ["--dataset=tokens"], "tokens": ["--model=gpt"]}
        for name in files:
            assert getattr(from_argv([f"--{kind}={name}", *goes_with.get(name, [])]), kind) == name


def test_what_runs_before_torch_is_loaded_is_imported_without_it() -> None:
    modules = "train, train.config, train.world.environment, train.data.shard, train.ddp.packing"
    code = f"import sys, {modules}; assert not {{'torch', 'torchvision', 'numpy'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
