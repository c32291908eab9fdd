"""Check that a checkpoint can be continued with the settings given now."""

from typing import Any

from train.config import TrainConfig, setting
from train.errors import UserError

# If one of these has another value now, the weights cannot be evaluated as they were.
_SAME_WEIGHTS = ("model", "dataset", "ema")
# If one of these has another value now, the run is no continuation of the saved one.
_SAME_RUN = (
    *_SAME_WEIGHTS,
    *("seed", "optimizer", "lr", "momentum", "weight_decay", "label_smoothing"),
    *("scheduler", "warmup_steps", "clip_norm", "sync_batchnorm", "dropout", "precision", "deterministic"),
    "logical_world",
)
# Schedulers whose learning rate depends on --epochs and --max-steps.
_NEEDS_ALL_EPOCHS = ("cosine", "one_cycle")


def refuse_other_run(saved: dict[str, Any], config: TrainConfig) -> None:
    """Raise UserError if settings that must equal the checkpoint's do not; the message names each of them."""
    now = config.model_dump()
    keys = _SAME_RUN + (("epochs", "max_steps") if config.scheduler in _NEEDS_ALL_EPOCHS else ())
    if config.evaluate_only:
        keys = _SAME_WEIGHTS
    # A checkpoint that is older than a setting was made with the setting's default.
    saved = TrainConfig().model_dump() | saved
    spread = TrainConfig.model_validate({"strategy": saved["strategy"]}).spreads_model
    if spread != config.spreads_model:
        raise UserError(
            f"the checkpoint was saved with {setting('strategy', saved['strategy'])}, "
            + ("each rank's part in separate files" if spread else "the whole model in one file")
            + f", which {config.strategy} cannot read: continue with "
            + ("fsdp or pipeline" if spread else "any strategy except fsdp and pipeline")
        )
    changed = [f'{key} was "{saved[key]}" and is "{now[key]}"' for key in keys if saved[key] != now[key]]
    if changed:
        raise UserError(
            f"the checkpoint belongs to another run: {', '.join(changed)}. "
            f"Give the old settings, or another {setting('checkpoint_dir')} for a new run"
        )


def misfit(thing: str, why: object) -> UserError:
    """Return the error of a checkpoint whose tensors are not those of a thing; why: in torch's words."""
    advice = f"give the old model, optimizer and data, or another {setting('checkpoint_dir')} for a new run"
    return UserError(f"the checkpoint does not fit {thing}: {advice}. {why}")


def already_ended(config: TrainConfig, reached: list[str]) -> str:
    """Return that the checkpoint has reached these limits, which are settings, and how to train on."""
    to_train_on = "to train on, give " + " and ".join(f"a larger {setting(name)}" for name in reached)
    if config.scheduler in _NEEDS_ALL_EPOCHS:
        to_train_on = f"{config.scheduler} cannot be prolonged: start a new run in another {setting('checkpoint_dir')}"
    values = {"epochs": config.epochs, "max_steps": config.max_steps}
    limits = " and ".join(f"{setting(name)}={values[name]}" for name in reached)
    return f"the loaded checkpoint has already reached {limits}, so nothing is trained; {to_train_on}"
