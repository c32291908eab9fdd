"""The injector: Python runs this file at the start of each process of a workload, and it brings about one fault.

$FAULT is the JSON of a Fault (rows.py), which happens once.  Python's trace and audit events show when a rank reaches
its place; so what runs is the program as it is.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

# A place is the start of a function of train/; `forward` is called for each slice.
_CALLS = {
    "rendezvous": ("/train/world/rendezvous.py", "wait_for_all_ranks"),
    "step": ("/train/run.py", "step"),
    "forward": ("/train/trainer.py", "loss"),
    "bucket": ("/train/collectives/tree_sum.py", "total"),
}
# Within a save, a place is before one of these events.
_OF_FILES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}


class Injector:
    def __init__(self, folder: Path, fault: dict[str, Any], rank: int) -> None:
        self._folder, self._fault, self._rank = folder, fault, rank
        self._steps = self._events = 0
        self._saving: int | None = None  # the thread
        (folder / f"pid-{rank}").write_text(str(os.getpid()))
        if rank == fault["rank"] and not (folder / "fired").exists():
            sys.addaudithook(self._audit)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        place, first = self._fault["place"], str(args[0]) if args else ""
        if event == "import" and first == "train.trainer" and place in _CALLS:
            sys.settrace(self._trace)
        if place == "import" and (event, first) == ("import", "torch"):
            self._fire({})
        if place == "unresolved" and event == "socket.getaddrinfo" and first == os.environ["MASTER_ADDR"]:
            self._count()
        if place == "save" and event in _OF_FILES:
            if f".unfinished-step-{self._fault['step']:08d}" in first:
                self._saving = threading.get_ident()
            if self._saving == threading.get_ident():
                self._count()

    def _count(self) -> None:
        self._events += 1
        if self._events == self._fault["event"]:
            self._fire({})

    def _trace(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if code.co_name == "step" and code.co_filename.endswith(_CALLS["step"][0]):
            self._steps += 1
        file, function = _CALLS[self._fault["place"]]
        if self._steps == self._fault["step"] and code.co_name == function and code.co_filename.endswith(file):
            sys.settrace(None)
            self._fire(frame.f_locals)

    def _fire(self, found: dict[str, Any]) -> None:
        fault, last_save = self._fault, (self._fault["step"] - 1) // 4 * 4
        # A save is written while the training goes on: what is lost would depend on the disk.
        while (
            fault["place"] in _CALLS and last_save > 0 and not any(self._folder.glob(f"checkpoints/step-*{last_save}"))
        ):
            time.sleep(0.01)
        self._fault = fault | {"place": ""}
        (self._folder / "fired").touch()
        for what in fault["what"].split():
            if what == "ask":  # the test, which then changes what surrounds this process
                (self._folder / "asks").write_text("?")
                (self._folder / "answers").read_text()
            elif what == "nan":
                found["batch"][0][0].fill_(float("nan"))
            elif what == "memory":
                import torch

                torch.empty(2**60)  # the allocator's error is raised in the traced frame
            elif what == "disk":
                with (self._folder / "checkpoints" / "filler").open("wb", buffering=0) as filler:
                    while filler.write(bytes(2**16)):
                        pass
            else:
                for pid in self._victims(fault["to"]):
                    os.kill(pid, signal.Signals[what])

    def _victims(self, to: str) -> list[int]:
        if to == "agent":
            return [os.getppid()]
        ranks = [int(file.read_text()) for file in self._folder.glob("pid-*")]
        if to == "node":  # this process last
            return [os.getppid(), *sorted(ranks, key=os.getpid().__eq__)]
        return [int((self._folder / f"pid-{to}").read_text())]


if "FAULT" in os.environ and "RANK" in os.environ:
    Injector(Path(os.environ["FAULT_FOLDER"]), json.loads(os.environ["FAULT"]), int(os.environ["RANK"]))
