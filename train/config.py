"""TrainConfig: every setting of a run, from flags, from a YAML file, or from a job spec's `train:` section.

No torch here: jobspec imports this file to reject a wrong `train:` section before anything is submitted.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from train.errors import UserError


def available(kind: str) -> list[str]:
    """Names of the models, datasets or strategies: one file each in the folder `kind`, sorted."""
    folder = Path(__file__).parent / kind
    return sorted(file.stem for file in folder.glob("*.py") if not file.stem.startswith("_"))


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant, or None."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1)), None)


def _one_of(kind: str) -> AfterValidator:
    def check(name: str) -> str:
        names = available(kind)
        if name not in names:
            raise PydanticCustomError(
                "unknown_name",
                '"{name}" is not one of {allowed}',
                {"name": name, "allowed": ", ".join(names), "nearest": nearest(name, names)},
            )
        return name

    return AfterValidator(check)


def _names(kind: str) -> WithJsonSchema:
    """The names as an enumeration, so that an editor completes them."""
    return WithJsonSchema({"type": "string", "enum": available(kind)})


_DAY_S = 86_400.0


class TrainConfig(BaseModel):
    """Settings of one training run; the field `batch_size` is the flag `--batch-size` and the YAML key `batch_size`."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), defer_build=True)

    model: Annotated[str, _one_of("models"), _names("models")] = Field(
        "mnist_cnn", description="a file in train/models/"
    )
    dataset: Annotated[str, _one_of("datasets"), _names("datasets")] = Field(
        "synthetic", description="a file in train/datasets/"
    )
    data_root: str = Field("data", min_length=1, description="folder with the dataset's files, in torchvision's layout")
    dropout: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="every dropout rate of the model (0 turns dropout off); default: the model's own",
    )
    sync_batchnorm: bool = Field(
        True, description="with more than one process, BatchNorm uses the statistics of the global batch"
    )

    epochs: int = Field(1, gt=0, description="passes over the training set")
    max_steps: int | None = Field(None, gt=0, description="stop after this many optimizer steps in all")
    batch_size: int = Field(
        64, gt=0, description="samples of one optimizer step over all processes together (the global batch)"
    )
    accumulate: int = Field(
        1, gt=0, description="micro-batches that each process cuts its share of a step into, to save memory"
    )
    optimizer: Literal["sgd", "adam", "adamw", "adadelta"] = Field("sgd", description="torch.optim algorithm")
    lr: float = Field(0.01, gt=0, allow_inf_nan=False, description="learning rate at the start")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of sgd")
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False, description="weight decay of the optimizer")
    clip_norm: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="clip the norm of the whole gradient to this"
    )
    scheduler: Literal["none", "step", "cosine"] = Field(
        "none", description="learning rate by epoch: constant, times lr_gamma each epoch, or cosine to 0"
    )
    lr_gamma: float = Field(0.7, gt=0, le=1, description="factor of the step scheduler, once an epoch")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="type of autocast; fp16 needs a CUDA device and scales the loss"
    )

    strategy: Annotated[str, _one_of("strategies"), _names("strategies")] = Field(
        "custom_ddp", description="a file in train/strategies/: how the processes share the model"
    )
    sync: Annotated[str, _one_of("sync"), _names("sync")] = Field(
        "all_reduce",
        description="a file in train/sync/: how custom_ddp sends gradients. all_reduce as they are; bf16 and fp16 "
        "(scaled to its range) in half the bytes; powersgd as two thin factors of each matrix, with what they leave "
        "out added to the next gradient",
    )
    bucket_mib: float = Field(
        25.0, gt=0, le=16384, description="capacity of a gradient bucket of custom_ddp and ddp, in MiB"
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto takes CUDA where torch sees it")
    seed: int = Field(0, ge=0, lt=2**32, description="seed of weights, sample order and dropout")
    input: Literal["auto", "memory", "loader"] = Field(
        "auto",
        description="memory keeps the uint8 samples on the device or host; loader reads them with a DataLoader; "
        "auto takes memory when they fit",
    )
    workers: int = Field(2, ge=0, description="processes of the DataLoader, for each rank, when input is loader")

    run_dir: str | None = Field(None, min_length=1, description="folder for metrics.jsonl")
    log_every: int = Field(50, gt=0, description="steps between two writes of metrics and progress")
    checkpoint_dir: str | None = Field(
        None, min_length=1, description="folder for checkpoints; none are saved without it"
    )
    checkpoint_every: int = Field(
        0, ge=0, description="save every so many optimizer steps; the end of each epoch is saved anyway"
    )
    keep_checkpoints: int = Field(3, gt=0, description="how many of the newest checkpoints stay on disk")
    resume: str = Field(
        "never",
        min_length=1,
        description="never, auto (the newest checkpoint in checkpoint_dir that verifies, if any) "
        "or the path of one checkpoint",
    )
    rendezvous_timeout_s: float = Field(
        300.0,
        gt=0,
        description="how long to wait for the other processes, and for one collective, in seconds",
    )
    resolve_timeout_s: float = Field(
        60.0, gt=0, le=_DAY_S, description="how long to wait until the name in MASTER_ADDR resolves, in seconds"
    )

    @model_validator(mode="after")
    def _keys_agree(self) -> TrainConfig:
        needs = {"resume": self.resume == "auto", "checkpoint_every": self.checkpoint_every > 0}
        for key, needed in needs.items():
            if needed and self.checkpoint_dir is None:
                raise PydanticCustomError(
                    "keys_disagree", "{key} is given but checkpoint_dir is not; say where checkpoints are", {"key": key}
                )
        if self.sync != "all_reduce" and self.strategy != "custom_ddp":
            raise PydanticCustomError(
                "keys_disagree",
                "{key} is {sync}, which strategy {strategy} cannot do; only custom_ddp has a choice",
                {"key": "sync", "sync": self.sync, "strategy": self.strategy},
            )
        return self


def flag(key: str) -> str:
    """The command-line flag of a key: `batch_size` is `--batch-size`."""
    return "--" + key.replace("_", "-")


def to_argv(values: Mapping[str, Any]) -> list[str]:
    """The flags that give a run these settings; `from_argv` reads them back.  None means: leave the default."""
    argv: list[str] = []
    for key, value in values.items():
        if value is None:
            continue
        if isinstance(value, bool):
            argv.append(flag(key) if value else flag("no_" + key))
        else:
            # One word, so that a value may begin with a dash.
            argv.append(f"{flag(key)}={value}")
    return argv


def from_argv(argv: list[str] | None = None) -> TrainConfig:
    """Read flags and, below them, the file of `--config`.

    Raises UserError with every problem at once; each names its flag, or file and line.
    """
    parser = _parser()
    parsed, unknown = parser.parse_known_args(argv)
    given = {key: value for key, value in vars(parsed).items() if value is not None}
    problems = [_unknown_flag(word) for word in unknown if word.startswith("-") or len(unknown) == 1]
    file = given.pop("config", None)
    where = {key: flag(key) for key in given}
    if file is not None:
        values, lines = _read_yaml(Path(file))
        where = {key: f"{file}:{line}: {key}" for key, line in lines.items()} | where
        given = values | given
    try:
        config = TrainConfig.model_validate(given)
    except ValidationError as error:
        problems += [_sentence(problem, where) for problem in error.errors()]
    if problems:
        raise UserError(_listed(problems, "with the settings; nothing was run"))
    return config


def _listed(problems: list[str], about: str) -> str:
    return "\n".join([f"{len(problems)} problem{'s' * (len(problems) > 1)} {about}", *problems])


def _unknown_flag(word: str) -> str:
    name = word.partition("=")[0]
    meant = nearest(name, map(flag, TrainConfig.model_fields))
    hint = f"did you mean {meant}?" if meant else "`python -m train --help` lists the flags"
    return f"  {name}: unknown flag; {hint}"


def _sentence(problem: Any, where: Mapping[str, str]) -> str:
    """One line for one pydantic error: where it was said, what is wrong, what was probably meant."""
    if not problem["loc"]:
        return f"  {problem['msg']}"
    key = str(problem["loc"][0])
    context = problem.get("ctx", {})
    place = where.get(key, key)
    if problem["type"] == "extra_forbidden":
        meant = nearest(key, TrainConfig.model_fields)
        return f"  {place}: unknown key" + (f'; did you mean "{meant}"?' if meant else "")
    if problem["type"] == "unknown_name":
        hint = f'; did you mean "{context["nearest"]}"?' if context["nearest"] else ""
        return f"  {place}: {problem['msg']}{hint}"
    message = problem["msg"][0].lower() + problem["msg"][1:]
    return f'  {place}: "{problem["input"]}" is not accepted; {message}'


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; `python -m train --help` lists the flags")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m train", description="Train a model on one or many processes.", allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE.yaml", help="the same keys as YAML; flags win over it")
    for key, field in TrainConfig.model_fields.items():
        default = "" if field.default is None else f" (default: {field.default})"
        text = f"{field.description}{default}".replace("%", "%%")
        if field.annotation is bool:
            parser.add_argument(flag(key), action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            parser.add_argument(flag(key), metavar=key.upper(), help=text)
    return parser


def _read_yaml(file: Path) -> tuple[dict[str, str | None], dict[str, int]]:
    """The keys of a flat YAML mapping as text (typed later, exactly like flags), and the line of each."""
    try:
        root = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--config: cannot read {file}: {error}") from None
    except RecursionError:
        raise UserError(f"--config: {file} must be a mapping of keys to values, not nested lists") from None
    except yaml.YAMLError as error:
        raise UserError(f"--config: {file} is not YAML: {' '.join(str(error).split())}") from None
    if root is None:
        return {}, {}
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"--config: {file} must be a mapping of keys to values")
    values: dict[str, str | None] = {}
    lines: dict[str, int] = {}
    problems = []
    for key, value in root.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or not isinstance(value, yaml.ScalarNode):
            problems.append(f"  {file}:{line}: the value must be a single word or number")
        elif key.value in values:
            problems.append(f"  {file}:{line}: {key.value}: given twice, first on line {lines[key.value]}")
        else:
            null = not value.style and value.value in ("", "~", "null")
            values[key.value] = None if null else value.value
            lines[key.value] = line
    if problems:
        raise UserError(_listed(problems, f"in {file}"))
    return {key: value for key, value in values.items() if value is not None}, lines
