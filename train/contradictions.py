"""Settings that contradict each other: a run refuses them rather than do something that was not asked for."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import PydanticCustomError

# A key that is not its default needs another, but resume only if it is auto: (key, the other key, the advice for it).
_NEEDS = [
    ("resume", "checkpoint_dir", "say where checkpoints are"),
    ("checkpoint_every", "checkpoint_dir", "say where checkpoints are"),
    ("tensorboard", "run_dir", "say where its files belong"),
    ("profile", "run_dir", "say where its files belong"),
    ("log_slices", "run_dir", "say where its files belong"),
    ("log_slices", "logical_world", "only then has a step slices"),
    ("evaluate_only", "resume", "say which checkpoint to evaluate: auto, or its path"),
]
# What fsdp and pipeline cannot do on any machine: (key, value, why).  The value None stands for every value but None.
_NO_WHOLE_MODEL: list[tuple[str, Any, str]] = [
    ("precision", "fp16", "each rank would see only its own overflows, and ranks would skip different steps; use bf16"),
    ("ema", None, "no rank holds the whole model, so none can keep its average"),
    ("on_oom", "halve", "the other processes would wait in the forward for the one that is out of memory"),
    ("compile", True, "it runs the layers one by one, with messages between them; use custom_ddp or ddp"),
]
# What cannot be cut into slices: (key, the value that can, why not another).
_EXACT: list[tuple[str, Any, str]] = [
    ("strategy", "custom_ddp", "leave strategy out"),
    ("sync", "all_reduce", "it sends what ranks, not slices, have added up"),
    ("on_oom", "stop", "halved slices would add up in another order"),
    ("compile", False, "what the compiler makes depends on the sizes that a process has seen"),
]
# What these models read; other files in train/models/ and train/datasets/ say themselves what they cannot.
_IMAGE_MODELS = ("mlp", "mnist_bn", "mnist_cnn", "resnet18")
_IMAGE_DATASETS = ("digits", "fashion_mnist", "mnist", "synthetic")


def refuse_contradictions(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise pydantic's error about the first two settings that contradict each other; jobspec shows where both are."""
    for key, other, sentence in _contradictions(values, defaults):
        # Written as in YAML: pydantic would write 1 for true.
        given = {"value": values[key], "theirs": values[other]}
        words = {name: str(word).lower() if isinstance(word, bool) else word for name, word in given.items()}
        raise PydanticCustomError("keys_disagree", sentence, {"key": key, "other": other, **words})


# pydantic wants the sentence as a LiteralString, a type that Python 3.10 does not have.
def _contradictions(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield a key, another one and a sentence, which begins with the key: messages put the key's place before it."""
    for key, other, advice in _NEEDS:
        needs = values[key] == "auto" if key == "resume" else values[key] != defaults[key]
        if needs and values[other] == defaults[other]:
            yield key, other, "{key} is given but {other} is not; " + advice
    if values["model"] == "gpt" and values["dataset"] in _IMAGE_DATASETS:
        sentence = "{key} is gpt, which reads tokens, but {other} is {theirs}; use the dataset called tokens"
        yield "model", "dataset", sentence
    if values["dataset"] == "tokens" and values["model"] in _IMAGE_MODELS:
        sentence = "{key} is tokens, but {other} is {theirs}, which reads images; only the model gpt reads tokens"
        yield "dataset", "model", sentence
    if values["sync"] != "all_reduce" and values["strategy"] != "custom_ddp":
        yield "sync", "strategy", "{key} is {value}, which {other} {theirs} does not support; only custom_ddp does"
    if values["momentum"] and values["optimizer"] != "sgd":
        yield "momentum", "optimizer", "{key} is {value}, but {other} is {theirs}; only sgd has this setting"
    for key, needed, why in _EXACT if values["logical_world"] is not None else ():
        if values[key] != needed:
            yield key, "logical_world", "{key} is {value}, which {other} cannot be used with: " + why
    for key, value, why in _NO_WHOLE_MODEL if values["strategy"] in ("fsdp", "pipeline") else ():
        if values[key] is not None if value is None else values[key] == value:
            yield key, "strategy", "{key} is {value}, which {other} {theirs} does not support: " + why
