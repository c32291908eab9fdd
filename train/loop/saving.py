"""The files of a run: the folders that it owns, the checkpoint that it continues, each save, also after a failure."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from train.checkpoints.folder import Checkpoints, find_checkpoint, read_checkpoint
from train.collectives.agreement import mistakes_shared_by_all_ranks, while_others_wait
from train.collectives.broadcast import thing_of_rank_0
from train.config import TrainConfig
from train.errors import first_line, naming_failures
from train.records.progress import say
from train.world.environment import World
from train.world.owner import Owner

_IDLE_S = 5.0
_PIECE_BYTES = 256 * 2**20  # of one message, because a timeout limits each message


def own(folders: Mapping[str, str | Path | None], say: Callable[[str], None]) -> ExitStack:
    """Own the folders, given by flag, until the stack is closed.  Raises UserError if another run owns one."""
    with ExitStack() as owned:
        for folder, flag in {Path(name).resolve(): flag for flag, name in folders.items() if name is not None}.items():
            with naming_failures(f"{flag}: cannot write {folder}"):
                owned.callback(Owner(folder, say).release)
        return owned.pop_all()


def find(config: TrainConfig, world: World, say: Callable[[str], None]) -> BytesIO | None:
    """Return the checkpoint to continue, on rank 0; ranks that all see the folder verify it together.  A collective."""
    folder = Path(config.checkpoint_dir) if config.checkpoint_dir else None
    if not config.spreads_model:
        return while_others_wait(
            world, lambda: find_checkpoint(config.resume, folder, say) if world.rank == 0 else None
        )

    def read(path: Path) -> BytesIO:
        return while_others_wait(world, lambda: read_checkpoint(path, world.rank, world.world_size))

    return find_checkpoint(config.resume, folder, say, read, thing_of_rank_0)


def load_on_all_ranks(world: World, content: BytesIO | None) -> dict[str, Any] | None:
    """Return rank 0's checkpoint `content` as a state on every rank, so that only rank 0 needs to see the folder.

    A collective; other ranks pass None.  Tensors are on the CPU.  Returns None if rank 0 has no checkpoint.
    """
    size = thing_of_rank_0(None if content is None else content.getbuffer().nbytes)
    if size is None:
        return None
    file = content or BytesIO(bytes(size))
    for piece in torch.frombuffer(file.getbuffer(), dtype=torch.uint8).split(_PIECE_BYTES):
        dist.broadcast(piece, src=0)
    state: dict[str, Any] = while_others_wait(world, lambda: torch.load(file, map_location="cpu", weights_only=True))
    return state


class Saving:
    """The saves of one run, on all ranks.

    checkpoints: on rank 0, or on all ranks if the model is spread over them; None without --checkpoint-dir, and if
        the run only evaluates.
    Making it is a collective.  Raises SharedError if the folder cannot be written.
    """

    def __init__(self, config: TrainConfig, world: World, say: Callable[[str], None]) -> None:
        self.config, self.world, self.saved_step = config, world, 0
        self.checkpoints: Checkpoints | None = None
        self.saves = config.checkpoint_dir is not None and not config.evaluate_only
        if not self.saves:
            return
        folder = Path(str(config.checkpoint_dir))
        if config.spreads_model:
            # Imported here: torch takes a second to import what it needs.
            from train.checkpoints.sharded import ShardedCheckpoints

            self.checkpoints = ShardedCheckpoints(folder, config.keep_checkpoints, say, world)
        with mistakes_shared_by_all_ranks():
            if world.rank == 0 and not config.spreads_model:
                self.checkpoints = Checkpoints(folder, config.keep_checkpoints, say)

    def save(self, step: int, state_dict: Callable[[], dict[str, Any]]) -> None:
        """Let rank 0 save the state after `step`; do nothing without checkpoint_dir.  A collective."""
        if not self.saves:
            return
        self.wait_until_saved()  # for the previous save
        state = state_dict()
        if self.checkpoints is not None:
            self.checkpoints.save(step, state)
        self.saved_step = step

    def wait_until_saved(self) -> None:
        """Return when the last save is on the disk.  A collective.  Raises SharedError if it could not be written."""
        if self.saves:
            save = self.checkpoints
            while_others_wait(self.world, lambda: None if save is None else save.wait(), "saving a checkpoint")

    def save_after_failure(
        self, step: int, state_dict: Callable[[], dict[str, Any]], device: torch.device, failure: Exception
    ) -> bool:
        """Save the state after the last whole step, unless it is saved already; return True if this has saved it.

        An error of the save is only printed.  On a GPU the failure is printed first, and nothing is saved if the GPU
        still works: a message of NCCL to a rank that is gone never ends, and a copy of the weights would wait for it.
        Not a collective: losses that the ranks have not yet summed are missing from the epoch's mean in the checkpoint;
        the epoch's record says of how many samples it is.
        """
        if self.checkpoints is None or self.saved_step == step:
            return False
        why_not = "other ranks hold parts of the model" if self.config.spreads_model else None
        if why_not is None and device.type == "cuda":
            say(f"rank 0 failed: {first_line(failure)}")
            why_not = None if _is_idle(device) else "the GPU waits for another rank"
        if why_not is not None:
            if self.world.rank == 0:
                say(f"nothing is saved now, because {why_not}; --resume=auto continues from the last checkpoint")
            return False
        try:
            self.checkpoints.save(step, state_dict())
            self.checkpoints.wait()
        except Exception as error:
            say(f"step {step} could not be saved: {error}")
            return False
        self.say_saved(step)
        return True

    def say_saved(self, step: int) -> None:
        if self.checkpoints is not None and self.world.rank == 0:
            say(f"saved the last complete step, {step}; --resume=auto continues there")


def _is_idle(device: torch.device) -> bool:
    """Return True if the device ends all its work soon."""
    deadline = time.monotonic() + _IDLE_S
    with suppress(RuntimeError):  # an error of the device: it ends nothing any more
        event = torch.cuda.current_stream(device).record_event()
        while time.monotonic() < deadline:
            if event.query():
                return True
            time.sleep(0.05)
    return False
