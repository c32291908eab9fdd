"""`--export PATH`: the weights alone, as a safetensors file that other programs read without this package."""

from __future__ import annotations

import os
from pathlib import Path

from train.checkpoints.host_copy import on_host
from train.errors import UserError, refuse_without
from train.loop.trainer import Trainer
from train.records.metrics import weights_sha256
from train.records.progress import say


def refuse_impossible_export(path: str) -> None:
    """Raise UserError, before anything is trained, if the file could not be written at the end."""
    refuse_without("safetensors", "--export", "export")
    folder = Path(path).absolute().parent
    # In this order: is_dir raises an error if the path to the folder cannot be read.
    if not os.access(folder, os.W_OK | os.X_OK) or not folder.is_dir():
        raise UserError(f"--export: cannot write {path}: {folder} is not a writable folder")


def export(trainer: Trainer, path: str) -> None:
    """Let rank 0 write the weights that were evaluated (the average, with --ema) to `path`.  A collective.

    An earlier file is replaced, as other tools do, because a resumed run exports again; the printed line says so.
    Written under another name, then renamed: the file is whole or absent.  Raises UserError if it cannot be written.
    """
    with trainer.step.evaluated_weights():
        state = trainer.step.wrapped.state_dict()
        if trainer.run.world.rank != 0:
            return
        # Imported here: only runs with --export need it.
        from safetensors.torch import save

        content = save({name: tensor.contiguous() for name, tensor in on_host(state).items()})
        weights = weights_sha256(state)
    beside = Path(f"{path}.unfinished")
    try:
        replacing = ", replacing an earlier file" if Path(path).exists() else ""
        beside.write_bytes(content)
        beside.rename(path)
    except OSError as error:
        raise UserError(f"--export: cannot write {path}: {error.strerror}") from None
    say(f"exported the weights of step {trainer.steps_done} to {path} (weights_sha256 {weights}){replacing}")
