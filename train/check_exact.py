"""`python -m train --check-exact`: a few steps on one process and on two, and where their bits differ."""

import tempfile
from pathlib import Path

from train.config import TrainConfig, flag
from train.errors import UserError
from train.records.runs import RunRecords, difference, read_runs
from train.world.local import run_on_this_machine

_STEPS = 5


def check_exact(config: TrainConfig, argv: list[str], procs: int) -> int:
    """Train on one process and on `procs`, and print where they differ; return 0 if weights and losses are equal.

    argv: the flags of `config`; five steps are trained, unless it has max_steps.
    Raises UserError for settings with which two runs would not be compared.
    """
    folders_given = [flag(key) for key in ("checkpoint_dir", "run_dir", "export") if getattr(config, key) is not None]
    if folders_given:
        raise UserError(f"--check-exact compares two new runs, in new folders: leave out {folders_given[0]}")
    if not 2 <= procs <= (config.logical_world or 0):
        raise UserError(
            f"--check-exact compares a run on 1 process with one on {procs}: it needs --procs of at least 2, and a "
            "--logical-world of at least as many"
        )
    with tempfile.TemporaryDirectory(prefix="check-exact-") as folder:
        limit = [f"--max-steps={_STEPS}"] if config.max_steps is None else []
        folders = [Path(folder, "one process"), Path(folder, f"{procs} processes")]
        for number, run_dir in zip((1, procs), folders, strict=True):
            records = [f"--run-dir={run_dir}", "--log-slices", "--log-every=1"]
            code = run_on_this_machine(number, ["-m", "train", *argv, *limit, *records])
            if code != 0:
                return code
        one, several = read_runs(folders)
    print(difference(one, several))
    same = bool(one.slices) and one.slices == several.slices and _results(one) == _results(several) != []
    print("the bits are the same" if same else "the bits are not the same: docs/exactness.md says what can change them")
    return 0 if same else 1


def _results(run: RunRecords) -> list[str | float]:
    """Return the hash of the last weights and the validation losses; empty if the run has not reached its end."""
    losses = [epoch["val_loss"] for epoch in run.epochs.values()]
    return [] if run.end is None else [run.end["weights_sha256"], *losses]
