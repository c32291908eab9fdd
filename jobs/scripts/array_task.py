"""One task of a job array: the same training with another learning rate, in a separate run folder.

    --lr=A,B,C    task number 0 takes A, number 1 takes B …; without an array the task is number 0
    --run-dir=D   the folder is D/0, D/1 …; ~ is the home directory of the process
All other flags go to `python -m train` as they are.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from train.__main__ import main


def flags_of_task(task: int, argv: list[str]) -> list[str]:
    """Return the flags of `python -m train` for this task.  Exits with a message if the task has no learning rate."""
    parser = argparse.ArgumentParser(
        prog="jobs.scripts.array_task",
        description=__doc__.splitlines()[0],
        epilog="All other flags go to `python -m train` as they are.",
        allow_abbrev=False,
    )
    parser.add_argument("--lr", required=True, help="learning rates A,B,C: task 0 takes A, task 1 takes B …")
    parser.add_argument("--run-dir", required=True, help="folder of the run folders 0, 1 …, one per task")
    args, others = parser.parse_known_args(argv)
    rates = args.lr.split(",")
    if task >= len(rates):
        parser.error(f"--lr has {len(rates)} values, for array tasks 0 to {len(rates) - 1}, but this is task {task}")
    return [*others, f"--lr={rates[task]}", f"--run-dir={Path(args.run_dir).expanduser()}/{task}"]


if __name__ == "__main__":
    sys.exit(main(flags_of_task(int(os.environ.get("SLURM_ARRAY_TASK_ID", "0")), sys.argv[1:])))
