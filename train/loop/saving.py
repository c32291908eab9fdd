"""What a run saves: the folders that it owns, the checkpoint that it continues, each save, also after a failure."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.optim.lr_scheduler import LRScheduler

from train.checkpoints.folder import Checkpoints, checkpoint_path, find_checkpoint, read_checkpoint
from train.checkpoints.same_run import misfit, refuse_other_run
from train.collectives.agreement import mistakes_shared_by_all_ranks, while_others_wait
from train.collectives.broadcast import broadcast_from_rank_0, thing_of_rank_0
from train.config import TrainConfig, setting
from train.errors import SharedError, UserError, first_line, naming_failures
from train.loop.position import Position
from train.loop.records import Records
from train.loop.returned import described
from train.loop.step import Step
from train.loop.tail import Tail
from train.loop.watchdog import Watchdog
from train.records.progress import say
from train.world.environment import World
from train.world.owner import Owner

if TYPE_CHECKING:
    from train.checkpoints.sharded import Spread

_IDLE_S = 5.0
_PIECE_BYTES = 256 * 2**20  # of one message, because a timeout limits each message

OWN_KEYS = {"scaler", "micro_batches", "computes_on", "sampler", "step", "evaluated_step", "epoch_means"}
"""Names in a checkpoint that are the run's own."""
OWN_KEYS |= {"config", "shards"}


class Saving:
    """The checkpoints of a run, and all that they hold: the named things, and what engine, position and records know.

    checkpoints: on rank 0, or on all ranks if the model is spread over them; None without --checkpoint-dir, and if
        the run only evaluates.
    config: as checkpoints hold it: with the epochs, batch size and micro-batches of the loop.
    files: what the run holds open, and the folders that it owns on rank 0.
    """

    def __init__(self, config: TrainConfig, world: World, engine: Step, position: Position, records: Records) -> None:
        self.config, self.world = config, world
        self.engine, self.position, self.records = engine, position, records
        self.files = ExitStack()
        self.is_open = self.saves = False
        self.saved_step = 0
        self.is_busy = False
        self.checkpoints: Checkpoints | None = None
        self._things: dict[str, Any] = {}
        self.tail = Tail()

    def open(self, things: dict[str, Any], expects: Callable[[], bool]) -> None:
        """Own the folders of the run, and continue the checkpoint that it asks for, if there is one.  A collective.

        things: what a checkpoint holds.  expects: returns False while no step is expected.
        """
        for name, thing in things.items():
            if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
                what = f"{name} is {described(thing)} without state_dict() and load_state_dict()"
                raise UserError(f"run.restore(): {what}: give a model, an optimizer or a class that has both")
        config, is_rank_0 = self.config, self.world.rank == 0
        tell: Callable[[str], None] = say if is_rank_0 else lambda text: None
        # A training may be saving in the folder that is evaluated.
        saves_in = None if config.evaluate_only else config.checkpoint_dir
        folders = {"run_dir": config.run_dir, "checkpoint_dir": saves_in} if is_rank_0 else {}
        owners, release = while_others_wait(self.world, lambda: own(folders, tell))
        self.files.enter_context(release)
        watchdog = Watchdog(self.world, config.collective_timeout_s, expects, owners)
        self.files.callback(watchdog.stop)  # before the release
        self.records.observers.append(watchdog)
        content = find(config, self.world, tell)
        self._things, self.is_open = things, True
        if spread := self._spread():
            spread.refuse_others(things)
        self._open_folder(saves_in, tell)
        with mistakes_shared_by_all_ranks():
            if is_rank_0 and config.evaluate_only and content is None:
                raise UserError(f"--evaluate-only: there is no checkpoint in {config.checkpoint_dir} to evaluate")
        self.records.open(config, self.files)
        state = load_on_all_ranks(self.world, content if is_rank_0 else None)
        del content  # the memory
        if state is not None:
            with mistakes_shared_by_all_ranks():
                self.load_state_dict(state)
            if spread := self._spread():
                newest = checkpoint_path(Path(str(config.checkpoint_dir)), state["step"])
                spread.load(self.world, newest if config.resume == "auto" else Path(config.resume), state)

    def _open_folder(self, folder: str | None, tell: Callable[[str], None]) -> None:
        if folder is None:
            return
        if not self._things:
            raise SharedError("checkpoint_dir is given, but run.restore() has not said what a checkpoint holds")
        things = self._things.values()
        parts = {id(part) for thing in things if isinstance(thing, nn.Module) for part in thing.modules()}
        are_plain = all(isinstance(thing, nn.Module | optim.Optimizer | LRScheduler) for thing in things)
        if are_plain and not all({id(one.call), id(one.module)} & parts for one in self.engine.models):
            raise SharedError("run.restore() lacks a model that run.wrap() has returned: no checkpoint would have it")
        config, self.saves = self.config, True
        if config.spreads_model:
            # Imported here: torch takes a second to import what it needs.
            from train.checkpoints.sharded import ShardedCheckpoints

            self.checkpoints = ShardedCheckpoints(Path(folder), tell, self.world)
        with mistakes_shared_by_all_ranks():
            if self.world.rank == 0 and not config.spreads_model:
                self.checkpoints = Checkpoints(Path(folder), say=tell)

    def _spread(self) -> "Spread | None":
        """Return the things of which each rank holds a part, if there are any."""
        if not self.config.spreads_model:
            return None
        from train.checkpoints.sharded import Spread  # here, as torch takes a second to import what it needs

        known = {name: self.engine.wrapped(thing) for name, thing in self._things.items()}
        things = {name: thing if (one := known[name]) is None else one.module for name, thing in self._things.items()}
        return Spread.of(things, self.engine.params)

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step depends on, and the config that led to it.  All ranks call it together."""
        state: dict[str, Any] = {}
        if spread := self._spread():
            context = self.engine.context
            if context.ranks_have_own_buffers:  # any rank may write them, and rank 0's are evaluated
                modules = [wrapped.module for wrapped in self.engine.models]
                broadcast_from_rank_0([buffer for module in modules for buffer in module.buffers()], context.group)
            state["shards"], rest = spread.state()
            state |= rest
        for name in self._things.keys() - state.keys():
            state[name] = (self.engine.wrapped(self._things[name]) or self._things[name]).state_dict()
        own = self.engine.state_dict() | self.position.state_dict() | self.records.state_dict()
        return state | own | {"config": self.config.model_dump()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was saved, on any number of processes.  To evaluate only, load the weights alone."""
        config = self.config
        refuse_other_run(dict(state["config"]), config)
        if missing := sorted(self._things.keys() - state.keys()):
            raise UserError(f"the checkpoint holds no {', '.join(missing)}, which run.restore() names")
        spread = self._spread()
        for name in self._things.keys() - (spread.things if spread else {}):
            self._load(name, state[name])
        self.position.steps = state["step"]
        if config.evaluate_only:
            return
        self.position.load_state_dict(state)
        self.records.load_state_dict(state)
        for difference in self.engine.load_state_dict(state):
            self.records.incident(self.position.steps, "other_bits", difference)
        if left := sorted(state.keys() - self._things.keys() - OWN_KEYS):
            lost = f"the checkpoint also holds {', '.join(left)}, which run.restore() does not name: a save lacks it"
            self.records.incident(self.position.steps, "not_restored", lost)
        self.saved_step = self.position.steps
        if self.checkpoints is not None and self.world.rank == 0:
            self.checkpoints.set_aside_after(self.position.steps)

    def _load(self, name: str, state: Any) -> None:
        thing = self._things[name]
        wrapped = self.engine.wrapped(thing)
        target = thing if wrapped is None else wrapped.module
        try:
            target.load_state_dict(state)
        except (RuntimeError, ValueError) as error:
            if not isinstance(target, nn.Module | optim.Optimizer):
                raise
            raise misfit(name, error) from None

    def refuse_unnamed_scheduler(self) -> None:
        """Raise SharedError if a scheduler changes a named optimizer and is not named: a restart begins it again."""
        if not self.saves or any(not isinstance(thing, nn.Module | optim.Optimizer) for thing in self._things.values()):
            return
        for name, thing in self._things.items():
            if hasattr(getattr(thing, "step", None), "_wrapped_by_lr_sched"):
                raise SharedError(
                    f"run.restore() names {name}, but not its learning-rate scheduler, which a restart would begin "
                    "again: make the scheduler before run.restore(), and name it, too, such as scheduler=scheduler"
                )

    def begin_tail(self) -> None:
        """Remember what the code after the batches of an epoch may change.  A collective."""
        if self.saves:
            things = (thing for thing in self._things.values() if self.engine.wrapped(thing) is None)
            self.tail.begin(things, self.checkpoints is not None)

    def save(self) -> None:
        """Let rank 0 save the state after the current step; do nothing without checkpoint_dir.  A collective."""
        if not self.saves or self.position.sampler is None:  # an evaluation may be stopped before the training
            return
        self.wait_until_saved()  # for the previous save
        with self._busy():
            state = self.state_dict()
            if self.checkpoints is not None:
                self.checkpoints.save(self.position.steps, state)
        self.saved_step = self.position.steps

    def wait_until_saved(self) -> None:
        """Return when the last save is on the disk.  A collective.  Raises SharedError if it could not be written."""
        if self.saves:
            save = self.checkpoints
            with self._busy():
                while_others_wait(self.world, lambda: None if save is None else save.wait(), "saving a checkpoint")

    def save_unless_saved(self) -> None:
        """Save the state after the current step, and say so, unless it is saved already.  A collective."""
        if self.saves and self.saved_step < self.position.steps and not self.engine.is_updating:
            self.save()
            self.wait_until_saved()
            self._say_saved()

    def save_after_failure(self, failure: Exception) -> bool:
        """Save the state after the last whole step, unless it is saved already; return True if this has saved it.

        An error of the save is only printed.  On a GPU the failure is printed first, and nothing is saved if the GPU
        still works: a message of NCCL to a rank that is gone never ends, and a copy of the weights would wait for it.
        Not a collective: losses that the ranks have not yet summed are missing from the epoch's mean in the checkpoint;
        the epoch's record says of how many samples it is.
        """
        step, device = self.position.steps, self.engine.device
        if self.checkpoints is None or self.saved_step == step or self.engine.is_updating:
            return False
        why_not = "other ranks hold parts of the model" if self.config.spreads_model else None
        if why_not is None and device.type == "cuda":
            say(f"rank 0 failed: {first_line(failure)}")
            why_not = None if _is_idle(device) else "the GPU waits for another rank"
        if why_not is not None:
            if self.world.rank == 0:
                resume = setting("resume", "auto")
                say(f"nothing is saved now, because {why_not}; {resume} continues from the last checkpoint")
            return False
        try:
            with self._busy():
                self.engine.undo()
                self.tail.undo()
                self.checkpoints.save(step, self.state_dict())
                self.checkpoints.wait()
        except Exception as error:
            say(f"step {step} could not be saved: {error}")
            return False
        self._say_saved()
        return True

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """No step is expected in the block."""
        self.is_busy = True
        try:
            yield
        finally:
            self.is_busy = False

    def _say_saved(self) -> None:
        if self.checkpoints is not None and self.world.rank == 0:
            say(f"saved the last complete step, {self.position.steps}; {setting('resume', 'auto')} continues there")


def own(folders: Mapping[str, str | Path | None], say: Callable[[str], None]) -> tuple[list[Owner], ExitStack]:
    """Own the folders, given by setting, until the stack is closed.  Raises UserError if another run owns one."""
    owners = []
    with ExitStack() as owned:
        for folder, key in {Path(name).resolve(): key for key, name in folders.items() if name is not None}.items():
            with naming_failures(f"{setting(key)}: cannot write {folder}"):
                owners.append(Owner(folder, say))
            owned.callback(owners[-1].release)
        return owners, owned.pop_all()


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
    """Return rank 0's checkpoint, if it has one, on every rank, with tensors on the CPU.  A collective."""
    size = thing_of_rank_0(None if content is None else content.getbuffer().nbytes)
    if size is None:
        return None
    file = content or BytesIO(bytes(size))
    for piece in torch.frombuffer(file.getbuffer(), dtype=torch.uint8).split(_PIECE_BYTES):
        dist.broadcast(piece, src=0)
    state: dict[str, Any] = while_others_wait(world, lambda: torch.load(file, map_location="cpu", weights_only=True))
    return state


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
