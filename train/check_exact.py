"""`python -m train --check-exact`: a few steps on one process and on two, and where their bits differ."""

import tempfile
from pathlib import Path

from train.config import TrainConfig
from train.errors import UserError
from train.records.runs import difference, read_runs
from train.world.local import train_on_this_machine

_STEPS = 5


def check_exact(config: TrainConfig, argv: list[str], procs: int) -> int:
    """Train on one process and on `procs`, and print where they differ; return 0 if weights and losses are equal.

    argv: the flags of `config`; unless they have --max-steps, five steps are trained.
    Raises UserError for settings with which two runs would not be compared.
    """
    if config.logical_world is None or procs < 2 or config.checkpoint_dir is not None:
        raise UserError(
            "--check-exact compares two new runs, on 1 and on 2 processes (or on --procs N): it needs --logical-world "
            "and no --checkpoint-dir"
        )
    with tempfile.TemporaryDirectory(prefix="check-exact-") as folder:
        folders = [Path(folder, "one process"), Path(folder, f"{procs} processes")]
        for number, run_dir in zip((1, procs), folders, strict=True):
            records = [f"--run-dir={run_dir}", "--log-slices", "--log-every=1"]
            code = train_on_this_machine(number, [f"--max-steps={_STEPS}", *argv, *records])
            if code != 0:
                return code
        one, several = read_runs(folders)
        print(difference(one, several))
    ends = [
        [run.end and run.end["weights_sha256"], *(epoch["val_loss"] for epoch in run.epochs.values())]
        for run in (one, several)
    ]
    same = ends[0] == ends[1]
    print("the bits are the same" if same else "the bits are not the same: docs/exactness.md says what can change them")
    return 0 if same else 1
