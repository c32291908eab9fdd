"""Run a function on several real processes that are connected as the ranks of one job."""

import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar
from unittest import mock

import torch
import torch.distributed as dist

from tests.cli import HANG_S
from train import __main__
from train.config import TrainConfig, name_settings_as_flags
from train.flags import from_argv
from train.records.observer import Observer
from train.trainer import Trainer
from train.world.attempt import Attempt
from train.world.environment import World
from train.world.process import Process
from train.world.rendezvous import open_process_group
from train.world.signals import SIGNALS

Result = TypeVar("Result")

# Forked from a server that has imported torch once, so that a rank starts in milliseconds.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["torch._dynamo", "torch.nn.parallel", "train.trainer"])


def run_ranks(
    world_size: int,
    function: Callable[..., Result],
    *args: Any,
    collective_timeout_s: float = HANG_S,
) -> list[Result]:
    """`function(world, *args)` on each of `world_size` processes, connected over gloo; what they return, by rank.

    A process sees the GPUs that this one's CUDA_VISIBLE_DEVICES names now.
    Raises RuntimeError with the traceback of the first rank that failed; nothing is left running.
    """
    waits = TrainConfig(rendezvous_timeout_s=HANG_S, collective_timeout_s=collective_timeout_s)
    return _start(world_size, _connected, waits, function, *args)


def train_on_ranks(world_size: int, *flags: str) -> None:
    """`python -m train FLAGS` on `world_size` processes, without the seconds that each would take to import torch."""
    _start(world_size, _train, *flags)


def make_trainer(world: World, *flags: str, observers: Sequence[Observer] = ()) -> Trainer:
    """The trainer of `python -m train FLAGS` on this rank."""
    name_settings_as_flags()
    return Trainer(from_argv([*flags]), Process(world), observers)


def launched(world_size: int, function: Callable[..., Result], *args: Any) -> list[Result]:
    """`function(*args)` on processes with the environment that torchrun gives them, not yet connected."""
    return _start(world_size, _launched, function, *args)


def shorten_timeout(group: dist.ProcessGroup | None, timeout_s: float) -> None:
    """Give the later collectives of a group this timeout: those up to now may have taken as long as they liked."""
    assert isinstance(group, dist.ProcessGroup)
    group._get_backend(torch.device("cpu"))._set_default_timeout(timedelta(seconds=timeout_s))


def _launched(world: World, function: Callable[..., Result], *args: Any) -> Result:
    numbers = {"RANK": world.rank, "WORLD_SIZE": world.world_size, "MASTER_PORT": world.master_port}
    numbers |= {"LOCAL_RANK": world.local_rank, "LOCAL_WORLD_SIZE": world.local_world_size}
    os.environ.update({name: str(number) for name, number in numbers.items()})
    os.environ.update(MASTER_ADDR=world.master_addr, TORCHELASTIC_USE_AGENT_STORE="True")
    return function(*args)


def _connected(world: World, waits: TrainConfig, function: Callable[..., Result], *args: Any) -> Result:
    with open_process_group(world, Attempt(world), waits):
        return function(world, *args)


def _train(world: World, *flags: str) -> None:
    waits = [f"--rendezvous-timeout-s={HANG_S}", f"--collective-timeout-s={HANG_S}"]
    __main__.train(from_argv([*flags, *waits]), Process(world))


def _start(world_size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    # As torchrun starts them: one thread for the ranks and for those of gloo, in which native DDP's hooks compute, too.
    with mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):
        forkserver.ensure_running()
    # The parent serves the store on a port of the system's choice: tests side by side cannot collide.
    store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")  # the server has that of the first test
    processes, pipes = [], []
    for rank in range(world_size):
        ours, theirs = _processes.Pipe(duplex=False)
        world = World(
            rank=rank,
            world_size=world_size,
            local_rank=rank,
            local_world_size=world_size,
            master_port=store.port,
            launcher="environment",
            store_is_served=True,
        )
        process = _processes.Process(target=_rank, args=(theirs, visible, function, world, *args))
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(ours)
    try:
        return _collect(pipes)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _rank(pipe: Connection, visible: str | None, function: Callable[..., Any], *args: Any) -> None:
    # A DataLoader of the test itself may have started the server, with these blocked for its workers.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ.update({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    try:
        # Pickled here, because a pipe would send tensors as handles that end with this process.
        pipe.send((True, pickle.dumps(function(*args))))
    except Exception:
        pipe.send((False, traceback.format_exc()))


def _collect(pipes: list[Any]) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in results]
        ready: list[Any] = wait(waiting)
        for pipe in ready:
            rank = pipes.index(pipe)
            try:
                succeeded, value = pipe.recv()
            except EOFError:
                raise RuntimeError(f"rank {rank} died without a result") from None
            if not succeeded:
                raise RuntimeError(f"rank {rank}:\n{value}")
            results[rank] = pickle.loads(value)
    return [results[rank] for rank in range(len(pipes))]
