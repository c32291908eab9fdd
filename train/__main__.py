"""python -m train: read the config, connect the processes, load data and model, and train.

Run it alone (one process) or with --procs, or let torchrun or a Slurm step start one process for each device:

    python -m train --model mnist_cnn --dataset mnist --epochs 14
    torchrun --standalone --nproc-per-node 2 -m train --model resnet18 --dataset fashion_mnist
"""

import os
import sys

from train.check_exact import check_exact
from train.config import TrainConfig, name_settings_as_flags
from train.errors import leave, refuse_without, report
from train.flags import from_argv, split_launch
from train.world.environment import World
from train.world.local import refuse_second_launcher, run_on_this_machine
from train.world.process import Process
from train.world.signals import EXIT_STOPPED, StopSignal


def main(argv: list[str] | None = None) -> int:
    """Train and return the exit code: 0 at the end, 1 after an error, 143 if a signal stopped the run.

    An error is printed before this returns: a mistake of the user as one paragraph, any other error with its traceback.
    """
    stop = StopSignal()
    # torchrun ends the other processes as soon as one has failed: let each find and report its own mistake first.
    stop.listen()
    try:
        procs, checks_exact, argv = split_launch(sys.argv[1:] if argv is None else argv)
        config = from_argv(argv)
        refuse_without("torch", "python -m train", "train")
        world = World.detect(os.environ)
        stop.let_through()  # until the processes have met there is nothing to save and nobody to agree with
        if procs is not None:
            refuse_second_launcher(world, "--check-exact" if checks_exact else "--procs")
            if checks_exact:
                return check_exact(config, argv, procs)
            return run_on_this_machine(procs, ["-m", "train", *argv])
        return train(config, Process(world))
    except Exception as error:
        report(error)
        return 1


def train(config: TrainConfig, process: Process) -> int:
    """Connect the processes, train, and write the last record; return the exit code."""
    # Imported here: importing torch takes seconds, and a wrong flag should be reported at once.
    from train.collectives.agreement import Stopped
    from train.trainer import Trainer

    name_settings_as_flags()
    trainer = Trainer(config, process)
    code = 0
    try:
        trainer.fit()
    except Stopped:
        code = EXIT_STOPPED
    finally:
        trainer.run.saving.files.close()  # after an error, too: the folders are free again
    trainer.run.close()
    return code


if __name__ == "__main__":
    leave(main())
