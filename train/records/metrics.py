"""metrics.jsonl, and the hash that shows whether two runs ended with the same weights."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import torch
from torch import Tensor

from train.errors import UserError
from train.records.observer import EpochRecord, Incident, Observer, RunEnd, StepRecord


class MetricsFile(Observer):
    """The observer that appends one JSON object per line to RUN_DIR/metrics.jsonl, which may exist already.

    With run_dir None it writes nothing, for the ranks other than 0 and for runs that keep no record.
    Raises UserError if the folder or file cannot be written.
    """

    def __init__(self, run_dir: str | None) -> None:
        self._file: TextIO | None = None
        if run_dir is None:
            return
        path = Path(run_dir) / "metrics.jsonl"
        with _naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            torn = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
            self._file = path.open("a", encoding="utf-8")
            if torn:  # end the cut-off line of a killed run, so that no record continues it
                self._file.write("\n")

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            with _naming(self._file.name):
                self._file.close()

    def write(self, event: str, **values: Any) -> None:
        """Append `{"event": event, "time": seconds since 1970, …}`; a reader of the file sees it at once.

        A `time` among the values replaces the current time.
        """
        if self._file is None:
            return
        line = json.dumps({"event": event, "time": time.time(), **values}, allow_nan=False) + "\n"
        with _naming(self._file.name):
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

    def incident(self, incident: Incident) -> None:
        self.write("incident", **asdict(incident))

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


@contextmanager
def _naming(path: Path | str) -> Iterator[None]:
    """Turn an OSError into a UserError that names the file."""
    try:
        yield
    except OSError as error:
        raise UserError(f"--run-dir: cannot write {path}: {error.strerror}") from None


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
