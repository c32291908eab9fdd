"""Sentences about settings that have no effect in this start."""

from pathlib import Path

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


def of_profile(config: TrainConfig, world_size: int, first_step: int, last_step: int | None) -> str | None:
    """Return why `profile` has no effect in a start that makes these steps, or None; last_step: None if unknown."""
    steps, ranks = config.profile, config.profile_ranks
    if steps is None:
        return None
    first, last = map(int, steps.split(":"))
    fits = first_step < first and (last_step is None or last <= last_step)  # the step before is needed, too
    has_rank = any(profiles(ranks, rank) for rank in range(world_size))
    is_done = first_step > 1 and any(Path(str(config.run_dir)).glob("profile/rank-*.txt"))
    if is_done or (fits and has_rank):
        return None
    can = f"steps from {first_step + 1} on" if last_step is None else f"steps {first_step + 1} to {last_step}"
    ours = f"this start can profile {can} on ranks 0 to {world_size - 1}"
    return f"--profile={steps} --profile-ranks={ranks} profiles nothing: {ours}"
