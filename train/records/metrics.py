"""metrics.jsonl: its records, the one of the start, and the hash that shows whether two runs ended with one result."""

import hashlib
import json
import math
import platform
import shlex
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from train import __version__
from train.config import TrainConfig, setting
from train.data.sampler import ShardSampler
from train.data.shard import num_steps
from train.errors import naming_failures
from train.records.observer import EpochRecord, Observer, RunEnd, StepRecord
from train.world.environment import World


class MetricsFile(Observer, AbstractContextManager["MetricsFile"]):
    """The observer that appends one JSON object per line to RUN_DIR/metrics.jsonl, which may exist already."""

    def __init__(self, run_dir: str) -> None:
        path = Path(run_dir) / "metrics.jsonl"
        self._failure = f"{setting('run_dir')}: cannot write {path}"
        with naming_failures(self._failure):
            path.parent.mkdir(parents=True, exist_ok=True)
            torn = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
            self._file = path.open("a", encoding="utf-8")
            if torn:  # end the cut-off line of a killed run, so that no record continues it
                self._file.write("\n")

    def __exit__(self, *_: object) -> None:
        with naming_failures(self._failure):
            self._file.close()

    def write(self, event: str, **values: Any) -> None:
        """Append `{"event": event, "time": seconds since 1970, …}` at once; a `time` among the values replaces that."""
        line = json.dumps({"event": event, "time": time.time(), **values}, allow_nan=False) + "\n"
        with naming_failures(self._failure):
            try:
                self._file.write(line)
                self._file.flush()
            except OSError:
                with suppress(OSError):
                    self._file.close()  # tries the failed write again: now, and not at a later close
                raise

    def run_started(self, start: dict[str, Any]) -> None:
        self.write("start", **start)

    def step_ended(self, step: int, known: Sequence[StepRecord]) -> None:
        """Write a `step` record of each step whose loss is known now; a field that is None is left out."""
        for record in known:
            self.write("step", **_flat(record))

    def incident(self, step: int, kind: str, text: str) -> None:
        self.write("incident", step=step, kind=kind, text=text)

    def epoch_ended(self, record: EpochRecord) -> None:
        self.write("epoch", **_flat(record))

    def run_ended(self, end: RunEnd) -> None:
        """Write the `end` record, or the `stop` record if a signal stopped the run."""
        if end.weights_sha256 is None:
            self.write("stop", epoch=end.epoch, step=end.step, saved=end.saved)
        else:
            self.write("end", step=end.step, weights_sha256=end.weights_sha256)


def _flat(record: StepRecord | EpochRecord) -> dict[str, Any]:
    """Return the fields of a record that are known, and what is in `values` in its place."""
    fields: dict[str, Any] = {}
    for name, value in asdict(record).items():
        fields |= value if name == "values" else {name: value}
    # JSON has no name for a number that is not finite.
    return {name: value for name, value in fields.items() if value is not None and math.isfinite(value)}


def weights_sha256(state_dict: Mapping[str, Tensor]) -> str:
    """SHA-256 over the tensors in the order of their sorted names.

    For each tensor: `name`, `dtype` (without "torch."), `shape` (numbers joined by commas), each ended by a zero byte;
    then the elements' little-endian bytes in row-major order.
    """
    digest = hashlib.sha256()
    for name in sorted(state_dict):
        tensor = state_dict[name].detach().cpu().contiguous()
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape = ",".join(map(str, tensor.shape))
        digest.update(f"{name}\0{dtype}\0{shape}\0".encode())
        # PyTorch runs on little-endian machines only, so the bytes in memory are little-endian already.
        digest.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def arithmetic(config: TrainConfig, world: World, sampler: ShardSampler) -> dict[str, int]:
    """Return how the processes share the global batch, and how many steps an epoch has."""
    readers, steps = sampler.reader()[1], num_steps(sampler.num_samples, sampler.batch_size)
    first, last = ([*map(len, sampler.shares(0, rank))] for rank in (0, readers - 1))
    return {
        "batch_size": config.batch_size,
        "world_size": world.world_size,
        "readers": readers,
        "largest_share": sum(first),
        "smallest_share": sum(last),
        "accumulate": config.accumulate,
        "num_samples": sampler.num_samples,
        "steps_per_epoch": steps,
        "last_batch": len(sampler.stretch(steps - 1)),
    }


def in_words(n: dict[str, int]) -> str:
    shares = f"{n['smallest_share']}"
    if n["largest_share"] != n["smallest_share"]:
        shares += f" or {n['largest_share']}"
    pieces = f", in {n['accumulate']} micro-batches" if n["accumulate"] > 1 else ""
    last = f", the last with {n['last_batch']} samples" if n["last_batch"] != n["batch_size"] else ""
    who = f"{n['readers']} process{'es' * (n['readers'] > 1)}"
    if n["readers"] < n["world_size"]:
        who = f"{n['readers']} pipeline of {n['world_size']} processes"
    return (
        f"global batch {n['batch_size']} = {who} x {shares} samples{pieces}\n"
        f"{n['num_samples']} samples = {n['steps_per_epoch']} steps per epoch{last}"
    )


def start_record(
    config: TrainConfig,
    world: World,
    device: torch.device,
    where: list[str],
    sampler: ShardSampler,
    settings: set[str] | None,
) -> dict[str, Any]:
    """Return the values of the `start` record of metrics.jsonl.

    where: a line for each rank.  settings: the names of those to record; None for all of the config's.
    """
    return {
        "run_id": uuid.uuid4().hex,
        "command_line": shlex.join(sys.orig_argv),
        "world": {"world_size": world.world_size, "launcher": world.launcher, "attempt": world.attempt, "ranks": where},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "versions": {"train": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "config": config.model_dump(include=settings),
        "arithmetic": arithmetic(config, world, sampler),
    }
