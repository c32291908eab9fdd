"""What a start cannot do of what was asked for, in words."""

from train.checkpoints.same_run import NEEDS_ALL_EPOCHS
from train.config import TrainConfig
from train.records.profile import profiles


def of_epochs(config: TrainConfig, reached: list[str]) -> str:
    """Return that the checkpoint has reached these limits, which are flags, and how to train on."""
    to_train_on = "to train on, give " + " and ".join(f"a larger {name}" for name in reached)
    if config.scheduler in NEEDS_ALL_EPOCHS:
        to_train_on = f"{config.scheduler} cannot be prolonged: start a new run in another --checkpoint-dir"
    values = {"--epochs": config.epochs, "--max-steps": config.max_steps}
    limits = " and ".join(f"{name}={values[name]}" for name in reached)
    return f"the loaded checkpoint has already reached {limits}, so nothing is trained; {to_train_on}"


def of_profile(config: TrainConfig, world_size: int, first_step: int, last_step: int) -> str | None:
    """Return why `profile` has no effect if only steps `first_step` to `last_step` can be profiled, else None."""
    steps, ranks = config.profile, config.profile_ranks
    if steps is None:
        return None
    fits = all(first_step <= int(step) <= last_step for step in steps.split(":"))
    if fits and any(profiles(ranks, rank) for rank in range(world_size)):
        return None
    can = f"this start can profile steps {first_step} to {last_step} on ranks 0 to {world_size - 1}"
    return f"--profile={steps} --profile-ranks={ranks} profiles nothing: {can}"
