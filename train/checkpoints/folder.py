"""Checkpoints that are whole or absent: written under another name, synced, renamed, and verified before they are read.

CHECKPOINT_DIR/step-00000938/ holds state.pt and, written last, manifest.json.  The manifest has the size and SHA-256 of
state.pt and of the files that train/checkpoints/sharded.py has put beside it.
"""

import copy
import hashlib
import io
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from train.config import setting
from train.errors import UserError, naming_failures

_STATE, _MANIFEST = "state.pt", "manifest.json"
_FORMAT = 1  # one more when older code would misread what is saved
_NAME = re.compile(r"step-\d{8,}")


class Checkpoints:
    """The checkpoints of one run, saved by rank 0 in a background thread.

    keep: how many of the newest to keep.  say: reports what cannot be removed, such as a file that NFS keeps because a
    process has it open.  cleans: whether to remove what an interrupted save has left.
    Raises UserError if the folder cannot be written, or (later) if a save failed.
    """

    def __init__(self, folder: Path, keep: int = 3, say: Callable[[str], None] = print, cleans: bool = True) -> None:
        self.folder, self.keep, self.say = folder, keep, say
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._pending: Future[None] | None = None
        self._buffer = io.BytesIO()
        with naming_failures(f"{setting('checkpoint_dir')}: cannot write {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
            for leftover in folder.glob(".unfinished-*") if cleans else ():
                self._remove(leftover)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Save `state` as the checkpoint of `step`; returns as soon as `state` may change again."""
        self.wait()
        self._pending = self._thread.submit(self._finish, step, self._copied(on_host(state)))

    def _copied(self, state: dict[str, Any]) -> memoryview:
        """Return the bytes of state.pt, in memory that is kept: new memory takes ten times as long to write to."""
        self._buffer.seek(0)
        checks = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(False)  # they take five times as long; a SHA-256 is in the manifest
        try:
            torch.save(state, self._buffer)
        finally:
            torch.serialization.set_crc32_options(checks)
        num_bytes = self._buffer.tell()
        self._buffer.truncate(num_bytes)
        self._buffer.seek(0)
        if unsafe := torch.serialization.get_unsafe_globals_in_checkpoint(self._buffer):
            raise UserError(
                f"a checkpoint cannot hold {', '.join(unsafe)}, which {setting('resume')} would refuse to load: return "
                "tensors, numbers, text, lists and dicts from state_dict()"
            )
        return self._buffer.getbuffer()[:num_bytes]

    def beside(self, step: int) -> Path:
        """Return the folder in which the checkpoint of `step` is written."""
        return self.folder / f".unfinished-step-{step:08d}"

    def make_beside(self, step: int) -> None:
        """Make the folder `beside(step)`, empty.  Raises OSError."""
        if self.beside(step).exists():
            self._remove(self.beside(step))
        self.beside(step).mkdir()

    def _remove(self, path: Path) -> None:
        """Remove a folder; if some of it cannot be removed, warn and leave it under another name."""
        try:
            # Renamed first: even if the removal is cut short, no half checkpoint has the name of a whole one.
            path = path.rename(self.folder / f".unfinished-old-{time.time_ns()}")
            shutil.rmtree(path)
        except OSError as error:
            self.say(f"warning: cannot remove {path} ({error.strerror}); the next start tries again")

    def wait(self) -> None:
        """Return when the last save is on the disk; raise UserError if it could not be written."""
        if self._pending is None:
            return
        try:
            self._pending.result()
        except OSError as error:
            raise UserError(self._not_saved(error.strerror)) from None
        finally:
            self._pending = None

    def _not_saved(self, why: str | None) -> str:
        return f"cannot save a checkpoint in {self.folder}: {why}; older checkpoints are intact"

    def _finish(self, step: int, content: memoryview, makes_beside: bool = True) -> None:
        """Write state.pt and the manifest into `beside(step)`, and give the folder its final name."""
        with content:  # the buffer can be used again
            if makes_beside:
                self.make_beside(step)
            target, beside = checkpoint_path(self.folder, step), self.beside(step)
            files = {file.name: _fingerprint(file) for file in sorted(beside.iterdir())}
            files[_STATE] = {"bytes": len(content), "sha256": _sha256(content)}
            _write_synced(beside / _STATE, content)
        _write_synced(
            beside / _MANIFEST, json.dumps({"format": _FORMAT, "step": step, "files": files}, indent=1).encode()
        )
        _sync_folder(beside)
        # A checkpoint of the same step, saved before its evaluation was done.
        former = self._set_aside(target) if target.exists() else None
        beside.rename(target)
        _sync_folder(self.folder)
        for old in [*filter(None, [former]), *_newest_first(self.folder)[self.keep :]]:
            self._remove(old)

    def set_aside_after(self, step: int) -> None:
        """Rename the checkpoints newer than `step`, where the run continues: none of them is found again or counted."""
        for path in _newest_first(self.folder):
            if _step_of(path) > step:
                self.say(f"resume: renamed {path.name}, newer than step {step}, to {self._set_aside(path).name}")

    def _set_aside(self, path: Path) -> Path:
        return path.rename(self.folder / f"set-aside-{path.name}-{time.time_ns()}")


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def read_checkpoint(path: Path, reader: int = 0, readers: int = 1) -> io.BytesIO:
    """Return the bytes of state.pt in one checkpoint folder, after verifying it and this reader's share of the others.

    The hash is checked before state.pt is parsed, since weights_only does not protect against a crafted file.
    Raises UserError if the folder is not there, or if a file is missing or has changed since it was saved.
    """
    if path.is_file():
        raise UserError(f"{path} is a file, and a checkpoint is a folder, such as {checkpoint_path(Path(), 100)}")
    if not path.exists():
        raise UserError(f"there is no checkpoint {path}")
    try:
        manifest = json.loads((path / _MANIFEST).read_bytes())
        if (made := manifest.get("format", 1)) > _FORMAT:
            raise UserError(
                f"{path} was saved by a newer version (format {made}; this one reads {_FORMAT}): update train"
            )
        expected = dict(manifest["files"])
        of_state = expected.pop(_STATE)
        content = io.BytesIO((path / _STATE).read_bytes())
        mine = sorted(expected)[reader::readers]
        damaged = [name for name in mine if _fingerprint(path / name) != expected[name]]
    except FileNotFoundError as error:
        raise UserError(f"the checkpoint {path} is incomplete: {Path(error.filename).name} is missing") from None
    except OSError as error:
        raise UserError(f"cannot read the checkpoint {path}: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{path} is damaged: {_MANIFEST} cannot be understood") from None
    if {"bytes": content.getbuffer().nbytes, "sha256": _sha256(content.getbuffer())} != of_state:
        damaged.append(_STATE)
    if damaged:
        raise UserError(f"{path} is damaged: the size or SHA-256 of {damaged[0]} is not the one in {_MANIFEST}")
    return content


def find_checkpoint(
    resume: str,
    folder: Path | None,
    say: Callable[[str], None],
    read: Callable[[Path], io.BytesIO] = read_checkpoint,
    agreed: Callable[[list[Path]], list[Path]] = list,
) -> io.BytesIO | None:
    """Return the verified bytes of the checkpoint that `resume` asks for, or None for a new run.

    say: reports which checkpoint was found, and which were skipped and why.
    read, agreed: for ranks that read together, as read_checkpoint, and return rank 0's list on all of them.
    Raises UserError if the named one or all are damaged, and for a new run in a folder with checkpoints.
    """
    found = agreed(_newest_first(folder) if folder is not None and folder.is_dir() else [])
    inside = folder is not None and Path(resume).resolve().parent == folder.resolve()
    if resume not in ("never", "auto") and (inside or not found):
        content = read(Path(resume))
        say(f"resume: {resume}")
        return content
    if resume != "auto" and found:
        raise UserError(
            f"{setting('checkpoint_dir')} {folder} holds {found[0].name} of an earlier run: continue that run with "
            f"{setting('resume', 'auto')}; for a new run, give another folder or move this one away"
        )
    for path in found:
        try:
            content = read(path)
        except UserError as error:
            say(f"resume: skipped a checkpoint: {error}")
        else:
            say(f"resume: {path}")
            return content
    if found:
        raise UserError(
            f"{setting('resume', 'auto')}: every checkpoint in {folder} is incomplete or damaged ({len(found)} in "
            "all); move them away to start a new run"
        )
    return None


def _newest_first(folder: Path) -> list[Path]:
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), key=_step_of, reverse=True)


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _sha256(content: memoryview) -> str:
    return hashlib.sha256(content).hexdigest()


def _fingerprint(file: Path) -> dict[str, int | str]:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while piece := opened.read(2**20):
            digest.update(piece)
    return {"bytes": file.stat().st_size, "sha256": digest.hexdigest()}


def _write_synced(file: Path, content: bytes | memoryview) -> None:
    with file.open("wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut, not just the bytes of its files."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def on_host(state: Any) -> Any:
    """Return nested dicts, lists and tuples with every CUDA tensor copied to the host; other objects stay the same.

    A copy to ordinary memory would make host and device wait for each tensor.  Copies to pinned memory run one after
    the other, and the host waits once.
    """
    copies: dict[int, Tensor] = {}  # by the id of the tensor, because a state may hold a tensor twice

    def moved(part: Any) -> Any:
        if isinstance(part, Tensor) and part.is_cuda:
            if id(part) not in copies:
                pinned = torch.empty(part.shape, dtype=part.dtype, pin_memory=True)
                copies[id(part)] = pinned.copy_(part.detach(), non_blocking=True)
            return copies[id(part)]
        if isinstance(part, dict):
            twin = copy.copy(part)  # also copies an attribute of a module's state dict: the versions of layers
            twin.update({key: moved(value) for key, value in part.items()})
            return twin
        return type(part)(map(moved, part)) if type(part) in (list, tuple) else part

    whole = moved(state)
    if copies:
        torch.cuda.synchronize()
    return whole
