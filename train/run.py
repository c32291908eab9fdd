"""The library's face: a training run in one's own loop, on any number of processes."""

import atexit
import os
import re
import sys
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch.distributed as dist

from train.collectives import missing_ranks
from train.config import TrainConfig
from train.errors import UserError, leave, report
from train.flags import checked
from train.loop.numerics import set_numerics
from train.loop.session import Session
from train.records.progress import say
from train.world.attempt import Attempt
from train.world.environment import World
from train.world.rendezvous import open_process_group
from train.world.signals import EXIT_STOPPED, StopSignal, stop_with_parent

_IDLE_S = 0.2
_OF_A_CLASSIFIER = {
    *("model", "dataset", "data_root", "dropout", "optimizer", "lr", "momentum", "weight_decay", "clip_norm"),
    *("decay_norms_and_biases", "label_smoothing", "ema", "scheduler", "warmup_steps", "lr_gamma", "workers", "input"),
    *("epochs", "batch_size", "accumulate", "pipeline_schedule", "export", "evaluate_only"),
}
_RECORDED = {*TrainConfig.model_fields} - _OF_A_CLASSIFIER | {"epochs", "batch_size", "accumulate"}


class Run(Session):
    """A training run in your own loop: the same numbers on any number of processes, and after any interruption.

    Start the program by torchrun, `srun` or alone.  All processes run the same lines:

    >>> import torch
    >>> from train import Run
    >>> run = Run(seed=1)
    >>> model = run.wrap(torch.nn.Linear(3, 1))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> run.restore(model=model, optimizer=optimizer)
    >>> points = torch.randn(10, 3)
    >>> dataset = torch.utils.data.TensorDataset(points, points.sum(dim=1, keepdim=True))
    >>> def loss(batch):
    ...     return torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    >>> for epoch in run.epochs(3):
    ...     for batch in run.batches(dataset, batch_size=4):
    ...         result = run.step(loss, batch, optimizer)

    Asking for the next batch counts the step, records it in RUN_DIR/metrics.jsonl, saves when that is due, and after
    SIGTERM, SIGUSR1 or Ctrl-C saves and ends all processes together, with exit code 143.  An uncaught error is reported
    with the ranks that are missing, and rank 0 saves the last complete step.

    Args:
        settings: named as the flags of `python -m train`, whose --help explains each: seed, device, strategy (any but
            pipeline), sync_batchnorm, precision, compile, deterministic, on_nonfinite, on_oom, max_steps;
            checkpoint_dir, checkpoint_every (steps), keep_checkpoints, resume; run_dir, log_every (steps), tensorboard,
            profile; collective_timeout_s, rendezvous_timeout_s (seconds) and others.
    Raises UserError if a setting is wrong or the processes cannot be connected.
    """

    def __init__(self, **settings: Any) -> None:
        if dist.is_initialized():  # an earlier Run keeps its hook
            message = "Run() connects the processes, but they are connected already: make one Run in a process, "
            raise UserError(f"{message}and leave out torch.distributed.init_process_group()")
        self._excepthook, sys.excepthook = sys.excepthook, self._fail
        given = {name: os.fspath(x) if isinstance(x, os.PathLike) else x for name, x in settings.items()}
        if wrong := sorted(given.keys() & _OF_A_CLASSIFIER):
            raise UserError(f"{', '.join(wrong)}: only `python -m train` has this setting; your own loop decides it")
        config = checked(given, {}, [])
        if config.strategy == "pipeline":
            raise UserError("strategy is pipeline, which only `python -m train` can use")
        stop, world = StopSignal(), World.detect(os.environ)
        if world.launcher == "torchrun":
            stop_with_parent()
        attempt = Attempt(world)
        set_numerics(config)
        self._connection = ExitStack()
        sys.excepthook = self._excepthook  # torch wraps it: ours must come outside of that
        try:
            self._connection.enter_context(open_process_group(world, attempt, config))
        finally:
            self._excepthook, sys.excepthook = sys.excepthook, self._fail
        stop.listen(answers=world.rank == 0)
        super().__init__(config, world, stop, settings=_RECORDED)
        atexit.register(self._leave)

    def report(self, kind: str, text: str) -> None:
        super().report(kind, in_settings(text))

    def _save_and_stop(self) -> Any:
        try:
            super()._save_and_stop()
        finally:
            self.files.close()
            atexit.register(os._exit, EXIT_STOPPED)
            atexit.register(sys.stdout.flush)  # runs before the line above

    def _leave(self) -> None:
        if self.rank == 0 and self._epoch_began is not None:
            lost = "the loop over run.epochs() was left early, so its last epoch is neither recorded nor saved"
            say(f"{lost}: call run.end() on all ranks before `break`")
        if self.sampler is not None:
            self._report_unprofiled(self.steps_done)
        self._leave_loop()
        self._batches, self._evaluated = (), {}  # ends the workers, which ignore multiprocessing's SIGTERM at the exit
        self.files.close()
        self._connection.close()
        # A thread of gloo that still freed a tensor while Python shuts down would abort the process.
        time.sleep(_IDLE_S)

    def _fail(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Report an uncaught error, save what can be saved, and end at once: other ranks may be gone."""
        sys.excepthook = self._excepthook
        if not isinstance(error, Exception):
            sys.excepthook(kind, error, trace)
            os._exit(130)
        try:
            if isinstance(error, RuntimeError) and dist.is_initialized():
                with missing_ranks.naming_missing_ranks():
                    raise error
        except Exception as named:
            error = named
        if hasattr(self, "engine"):
            self.failed(error)
        if isinstance(error, UserError):
            error = type(error)(in_settings(str(error))).with_traceback(error.__traceback__)
        report(error)
        leave(1)


def in_settings(text: str) -> str:
    """Return a text about flags with the settings as they are written in Run(…): sync_batchnorm=False for the flag."""
    off = {None: "", "no-": "=False"}
    return re.sub(r"--(no-)?([a-z][a-z-]+)", lambda flag: flag[2].replace("-", "_") + off[flag[1]], text)
