"""python -m train.doctor: do these processes meet, and can they train together?

Start it exactly as the training is started, on the same nodes; it takes the flags of the training, too:

    torchrun --standalone --nproc-per-node 2 -m train.doctor
    render-job slurm jobs/doctor.yaml sites/mine.yaml | sbatch
"""

import os
import sys

from train.config import name_settings_as_flags
from train.errors import UserError, leave, refuse_without, report
from train.flags import from_argv, split_launch
from train.world.environment import World
from train.world.local import refuse_second_launcher, run_on_this_machine
from train.world.process import Process

# Shorter than those of a training; flags replace them.
_WAITS = ["--rendezvous-timeout-s=60", "--collective-timeout-s=60"]


def main(argv: list[str] | None = None) -> int:
    """Examine, report and return the exit code: 0 if nothing is wrong, 1 otherwise."""
    name_settings_as_flags()
    try:
        procs, checks_exact, argv = split_launch(sys.argv[1:] if argv is None else argv)
        if checks_exact:
            raise UserError("--check-exact: train.doctor trains nothing; use `python -m train --check-exact`")
        config = from_argv([*_WAITS, *argv])
        refuse_without("torch", "train.doctor", "train")
        if procs is not None:
            refuse_second_launcher(World.detect(os.environ), "--procs")
            return run_on_this_machine(procs, ["-m", "train.doctor", *argv])
        # Imported here: importing torch takes seconds, and a wrong flag should be reported at once.
        from train.examination import examine
        from train.world.rendezvous import open_process_group

        process = Process()
        with open_process_group(process.world, process.attempt, config):
            examine(process.world, config)
        return 0
    except Exception as error:
        report(error, "PROBLEM")
        return 1


if __name__ == "__main__":
    leave(main())
