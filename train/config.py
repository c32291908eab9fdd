"""TrainConfig: every setting of a run; train/flags.py reads it from flags, jobspec from a job spec.

This file imports no torch, because jobspec imports it to reject a wrong `train:` section before anything is submitted.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, field_validator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from train.contradictions import refuse_contradictions


def available(kind: str) -> list[str]:
    """Return the sorted names of the models, datasets or strategies: one file each in the folder `kind`."""
    folder = Path(__file__).parent / kind
    return sorted(file.stem for file in folder.glob("*.py") if not file.stem.startswith("_"))


def nearest(name: str, names: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, list(names), n=1)), None)


# The words that follow "must be", by the type of pydantic's error.
_EXPECTED = {
    "string_type": "text",
    "string_unicode": "text in UTF-8",
    "string_too_short": "text of at least {min_length} character",
    "int_parsing_size": "a whole number with fewer digits",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("dict_type", "model_type"), "a mapping of keys to values"),
    **dict.fromkeys(("literal_error", "unexpected"), "{expected}"),
    "list_type": "a list",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "finite_number": "a finite number",
}


def expected(error: ErrorDetails) -> str | None:
    """Return what a value must be instead, in the user's words; None for an error of another kind."""
    limits = {
        name: f"{limit:.12g}" if isinstance(limit, float) else limit for name, limit in error.get("ctx", {}).items()
    }
    words = _EXPECTED.get(error["type"])
    return None if words is None else words.format(**limits).replace("'", '"')


def _one_of(kind: str) -> AfterValidator:
    def check(name: str) -> str:
        names = available(kind)
        if name not in names:
            shown = name.encode("utf-8", "backslashreplace").decode()  # pydantic cannot carry half of a surrogate pair
            raise PydanticCustomError(
                "unknown_name",
                '"{name}" is not one of {allowed}',
                {"name": shown, "allowed": ", ".join(names), "nearest": nearest(name, names)},
            )
        return name

    return AfterValidator(check)


def _names(kind: str) -> WithJsonSchema:
    """Describe the names as an enumeration in the schema, so that an editor completes them."""
    return WithJsonSchema({"type": "string", "enum": available(kind)})


# At most 18 digits: Python refuses to read integers of thousands of digits.
def _steps_in_order(text: str) -> str:
    match = re.fullmatch(r"(\d{1,18}):(\d{1,18})", text)
    if match is None or not 2 <= int(match[1]) <= int(match[2]):
        raise PydanticCustomError("unexpected", "must be {expected}", {"expected": _STEPS})
    return text


YEAR_S = 365 * 86_400.0
_MOST = 10**12  # more than any run has, and a number that floats and sizes can still hold
PATHS = ("data_root", "run_dir", "checkpoint_dir", "resume", "export")
_SWITCHES = ("yes", "no", "true", "false", "on", "off")
_STEPS = "steps FIRST:LAST, with 2 <= FIRST <= LAST"


class TrainConfig(BaseModel):
    """Settings of one training run; the field `batch_size` is the flag `--batch-size` and the YAML key `batch_size`."""

    # The text below a field is its description, in --help, too.
    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), defer_build=True, use_attribute_docstrings=True
    )

    model: Annotated[str, _one_of("models"), _names("models")] = "mnist_cnn"
    """a file in train/models/"""
    dataset: Annotated[str, _one_of("datasets"), _names("datasets")] = "synthetic"
    """a file in train/datasets/"""
    data_root: str = Field("data", min_length=1)
    """folder with the dataset's files, in torchvision's layout"""
    dropout: float | None = Field(None, ge=0, lt=1)
    """every dropout rate of the model (0 turns dropout off); default: the model's own"""
    sync_batchnorm: bool = True
    """with more than one process, BatchNorm uses the statistics of the global batch"""

    epochs: int = Field(1, gt=0, le=_MOST)
    """passes over the training set"""
    max_steps: int | None = Field(None, gt=0)
    """optimizer steps after which the run and its schedule end, counted over all epochs"""
    batch_size: int = Field(64, gt=0, le=_MOST)
    """samples of one optimizer step over all processes together (the global batch)"""
    accumulate: int = Field(1, gt=0)
    """micro-batches into which a step is cut, to save memory; the processes share each of them"""
    optimizer: Literal["sgd", "adam", "adamw", "adadelta"] = "sgd"
    """torch.optim algorithm"""
    lr: float = Field(0.01, gt=0, le=1e30, allow_inf_nan=False)
    """learning rate, which scheduler and warmup_steps change"""
    momentum: float = Field(0.0, ge=0, lt=1)
    """momentum of sgd"""
    weight_decay: float = Field(0.0, ge=0, le=1e6, allow_inf_nan=False)
    """weight decay; unlike in torch, none with adamw either"""
    clip_norm: float | None = Field(None, gt=0, allow_inf_nan=False)
    """scale the whole gradient down to this norm if its norm is larger"""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """what all processes do together when a loss or the gradient is not finite. stop: save the state before that step,
    and stop. skip: skip the step, but stop after ten in a row"""
    on_oom: Literal["stop", "halve"] = "stop"
    """what happens when a process runs out of memory. stop: the run ends. halve: all ranks halve their micro-batches
    and repeat the step; gradients are then averaged after backward, not during it"""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """part of each training label that is spread over all classes"""
    ema: float | None = Field(None, gt=0, lt=1)
    """keep a moving average of the weights with this decay (such as 0.999), for evaluation and --export"""
    scheduler: Literal["none", "step", "cosine", "one_cycle"] = "none"
    """how the learning rate changes. none: not at all. step: multiplied by 0.7 after each epoch. cosine: falls each
    step, along a cosine to 0. one_cycle: rises each step from lr / 25 to lr, then falls to almost 0"""
    warmup_steps: int = Field(0, ge=0, le=_MOST)
    """first steps in which the learning rate rises to lr; with 0, one_cycle rises in the first 30 % of all steps"""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """fp32 computes in full float32. tf32 rounds the inputs of float32 convolutions and matrix products to 10 mantissa
    bits, on GPUs with Ampere or newer. bf16 and fp16 use autocast, fp16 with loss scaling"""
    compile: bool = False
    """torch.compile the model: the first steps take a minute or so, later ones are faster"""
    deterministic: bool = False
    """use only algorithms that give the same bits each time, also on CUDA; fails if torch has none for an operation"""
    logical_world: int | None = Field(None, ge=1, le=_MOST)
    """compute the same bits on any number of processes up to this one. Each step is cut into so many slices, which are
    added in one order. Implies deterministic; on CPUs one thread, or OMP_NUM_THREADS"""

    strategy: Annotated[str, _one_of("strategies"), _names("strategies")] = "custom_ddp"
    """a file in train/strategies/: how the processes share the model"""
    sync: Annotated[str, _one_of("sync"), _names("sync")] = "all_reduce"
    """a file in train/sync/: how custom_ddp sends gradients. all_reduce: as they are; bf16: rounded, half the bytes"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes CUDA if torch sees a GPU, else the CPU"""
    seed: int = Field(0, ge=0, lt=2**32)
    """seed of weights, sample order and dropout"""
    input: Literal["auto", "memory", "loader"] = "auto"
    """memory keeps all samples on the device, or on the host if they do not fit there. loader reads them with a
    DataLoader. auto takes memory for the datasets in train/datasets/"""
    workers: int = Field(2, ge=0, le=1024)
    """processes of each rank's DataLoader, if input is loader"""

    run_dir: str | None = Field(None, min_length=1)
    """folder for metrics.jsonl and other records"""
    log_every: int = Field(50, gt=0)
    """steps between two writes of metrics and progress"""
    log_slices: bool = False
    """with logical_world: write what each slice computed into run_dir; slow. train.report --diff then names the first
    slice and tensor in which two runs differ"""
    tensorboard: bool = False
    """write TensorBoard's files into run_dir/tensorboard"""
    profile: Annotated[str, AfterValidator(_steps_in_order)] | None = None
    """steps FIRST:LAST that rank 0 profiles, into a Chrome trace and a summary in run_dir/profile. FIRST is at least 2,
    because step 1 connects the ranks"""
    checkpoint_dir: str | None = Field(None, min_length=1)
    """folder for checkpoints, of which the newest three stay; none are saved without it"""
    checkpoint_every: int = Field(0, ge=0)
    """save every so many optimizer steps and after each epoch; 0: only after each epoch"""
    resume: str = Field("never", min_length=1, json_schema_extra={"not": {"enum": [*_SWITCHES]}})
    """never, auto (the newest undamaged checkpoint in checkpoint_dir, if any) or the path of one checkpoint"""
    export: str | None = Field(None, min_length=1)
    """file for the weights alone, written as safetensors at the end of the run"""
    evaluate_only: bool = False
    """evaluate the checkpoint of --resume, without training; --export can write its weights"""
    rendezvous_timeout_s: float = Field(300.0, ge=1, le=YEAR_S)
    """how long to wait for the other processes at the start, in seconds"""
    collective_timeout_s: float = Field(300.0, ge=1, le=YEAR_S)
    """how long one collective (a message between all processes) may take, in seconds"""

    @field_validator("resume")
    @classmethod
    def _is_no_switch(cls, resume: str) -> str:
        if resume.lower() in _SWITCHES:
            expected = f"never, auto or the path of a checkpoint (./{resume} for a folder of this name)"
            raise PydanticCustomError("unexpected", "must be {expected}", {"expected": expected})
        return resume

    @model_validator(mode="after")
    def _keys_agree(self) -> TrainConfig:
        defaults = {key: field.default for key, field in type(self).model_fields.items()}
        refuse_contradictions(vars(self), defaults)
        return self

    @property
    def spreads_model(self) -> bool:
        """Return True if each rank holds only a part of the model."""
        return self.strategy in ("fsdp", "pipeline")

    def reader(self, rank: int, world_size: int) -> tuple[int, int]:
        """Return this process's number among the readers of different samples, and how many: one in a pipeline."""
        return (0, 1) if self.strategy == "pipeline" else (rank, world_size)


for _field in TrainConfig.model_fields.values():  # in one line, however many it takes above
    _field.description = " ".join((_field.description or "").split())


OF_A_CLASSIFIER = {
    *("model", "dataset", "data_root", "dropout", "optimizer", "lr", "momentum", "weight_decay", "clip_norm"),
    *("label_smoothing", "ema", "scheduler", "warmup_steps", "workers", "input"),
    *("epochs", "batch_size", "accumulate", "export", "evaluate_only"),
}
"""Settings of `python -m train` that a loop of one's own decides itself."""


def choices(key: str) -> list[str]:
    """Return the values of a setting that allows only certain words; an empty list for any other setting."""
    field = TrainConfig.model_fields.get(key)
    if field is None:
        return []
    named = [
        part.json_schema["enum"] for part in field.metadata if isinstance(part, WithJsonSchema) and part.json_schema
    ]
    literal = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return named[0] if named else [str(value) for value in literal]


def flag(key: str) -> str:
    """Return the command-line flag of a key: `--batch-size` for `batch_size`."""
    return "--" + key.replace("_", "-")


_named_as_flags = False


def name_settings_as_flags() -> None:
    """Let `setting` return flags from now on, because this process is `python -m train`."""
    global _named_as_flags
    _named_as_flags = True


def setting(key: str, value: str | bool | None = None) -> str:
    """Return a setting as the caller writes it, for messages: `resume="auto"`, or in `python -m train` its flag."""
    if _named_as_flags:
        return flag(key) if value is None else to_argv({key: value})[0]
    return key if value is None else f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}"


def to_argv(values: Mapping[str, Any]) -> list[str]:
    """Return the flags for these settings, which `flags.from_argv` reads back.  A key that is None gets no flag."""
    argv: list[str] = []
    for key, value in values.items():
        if isinstance(value, bool):
            argv.append(flag(key) if value else flag("no_" + key))
        elif value is not None:
            # Flag and value in one word, so that a value may begin with a dash.
            argv.append(f"{flag(key)}={value}")
    return argv
