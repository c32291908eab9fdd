"""A save that is interrupted at any moment leaves whole checkpoints, and nothing that disturbs a later save."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.checkpoints.saved import names, resumed, save
from train.checkpoints.folder import read_checkpoint

ROOT = Path(__file__).parents[3]


def test_bytes_and_names_are_synced_before_the_new_name_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor: int) -> None:
        events.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().relative_to(tmp_path)}")
        fsync(descriptor)

    def noted_rename(source: Path, target: Path) -> None:
        events.append(f"rename {Path(target).name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    save(tmp_path, 1)
    assert events == [
        "sync .unfinished-step-00000001/state.pt",
        "sync .unfinished-step-00000001/manifest.json",
        "sync .unfinished-step-00000001",
        "rename step-00000001",
        "sync .",
    ]


# For n = 1, 2, 3 … a process saves step 1, then step 2 with keep=1, and is killed before the n-th file event of that.
# It ends when a process lives to the end.  Forked, because importing torch takes longer than all the rest.
KILLED_BEFORE_EVENT_N = """
import os, sys
from pathlib import Path
from tests.faults.sitecustomize import Injector
from tests.train.checkpoints.saved import save

fault = {"what": "SIGKILL", "to": "0", "rank": 0, "step": 2, "place": "save"}
for n in range(1, 1000):
    folder = Path(sys.argv[1]) / f"{n:03d}"
    pid = os.fork()
    if pid == 0:
        save(folder / "checkpoints", 1, keep=1)
        Injector(folder, fault | {"event": n}, 0)
        save(folder / "checkpoints", 2, keep=1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 0:
        break
    assert code == -9, code
"""


def test_a_process_killed_before_any_file_event_of_a_save_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED_BEFORE_EVENT_N, str(tmp_path)], cwd=ROOT, check=True)
    folders = sorted(tmp_path.glob("*/checkpoints"))
    assert len(folders) > 8, "state, manifest, two folders, renames and removals are at least as many events"
    for checkpoint in tmp_path.glob("*/checkpoints/step-*"):
        read_checkpoint(checkpoint)  # never half a one under a whole one's name
    steps = [resumed(folder)[0] for folder in folders]
    assert steps[0] == 1
    assert steps[-1] == 2
    assert steps == sorted(step for step in steps if step is not None), "the new one appears once and for all"
    for folder in folders:
        save(folder, 3, keep=1)
        assert resumed(folder)[0] == 3
        assert names(folder) == ["step-00000003"], "nothing is left of what was interrupted"
