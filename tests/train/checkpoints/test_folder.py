"""Checkpoints are whole or not there: damaged ones are skipped and named, and no way to die loses the one before."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from tests.train.checkpoints.saved import names, resumed, save, step_in
from train.checkpoints.folder import Checkpoints, find_checkpoint, read_checkpoint
from train.errors import UserError


def test_a_state_may_change_as_soon_as_save_returns(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "new" / "folder", keep=1)
    weights = torch.full((9,), 1.0)
    checkpoints.save(1, {"step": 1, "model": {"w": weights}})
    weights.fill_(99.0)
    checkpoints.wait()
    assert resumed(tmp_path / "new" / "folder") == (1, [f"resume: {tmp_path}/new/folder/step-00000001"])


def test_states_of_different_sizes_one_after_the_other_come_back(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=9)
    for step, size in enumerate([10_000, 10, 100_000]):
        checkpoints.save(step, {"weights": torch.full((size,), float(step))})
    checkpoints.wait()
    for step, size in enumerate([10_000, 10, 100_000]):
        state = torch.load(tmp_path / f"step-{step:08d}" / "state.pt", weights_only=True)
        assert torch.equal(state["weights"], torch.full((size,), float(step)))


def test_a_state_that_no_restart_could_load_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot hold numpy.*, which resume would refuse to load: return tensors"):
        Checkpoints(tmp_path, keep=1).save(1, {"best": np.float64(1)})


def test_the_newest_is_taken_also_when_steps_outgrow_their_digits(tmp_path: Path) -> None:
    save(tmp_path, 9, 10, 99_999_999, 100_000_000)
    assert resumed(tmp_path)[0] == 100_000_000


def test_without_checkpoints_a_new_run_starts(tmp_path: Path) -> None:
    assert resumed(tmp_path) == (None, [])
    assert find_checkpoint("auto", tmp_path / "absent", pytest.fail) is None
    assert find_checkpoint("never", tmp_path, pytest.fail) is None
    assert find_checkpoint("never", None, pytest.fail) is None


def test_a_named_checkpoint_is_taken_although_there_is_a_newer_one(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    told: list[str] = []
    assert step_in(find_checkpoint(str(tmp_path / "step-00000001"), tmp_path, told.append)) == 1
    assert told == [f"resume: {tmp_path}/step-00000001"]


def test_a_named_checkpoint_that_is_damaged_or_not_there_or_a_file_is_an_error_although_there_are_others(
    tmp_path: Path,
) -> None:
    save(tmp_path, 1, 2)
    harm(tmp_path / "step-00000002", "state truncated")
    (tmp_path / "weights.safetensors").touch()
    for name, said in {
        "step-00000002": "step-00000002 is damaged",
        "step-5": r"there is no checkpoint .*step-5$",
        "weights.safetensors": r"safetensors is a file, and a checkpoint is a folder, such as step-00000100$",
    }.items():
        with pytest.raises(UserError, match=said):
            find_checkpoint(str(tmp_path / name), tmp_path, pytest.fail)


def test_a_new_run_does_not_start_over_the_checkpoints_of_an_earlier_one(tmp_path: Path) -> None:
    save(tmp_path, 3)
    with pytest.raises(UserError, match='holds step-00000003 of an earlier run: continue that run with resume="auto"'):
        find_checkpoint("never", tmp_path, pytest.fail)


_NOT_THE_STATE = "damaged: the size or SHA-256 of state.pt is not the one in manifest.json"
_NO_MANIFEST = "manifest.json cannot be understood"
# What one of the two files becomes (None: it is gone), and what is said.
DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes | None], str]] = {
    "state truncated": ("state.pt", lambda content: content[:-1], _NOT_THE_STATE),
    "state longer": ("state.pt", lambda content: content + b"\0", _NOT_THE_STATE),
    "state zeroed": ("state.pt", lambda content: bytes(len(content)), _NOT_THE_STATE),
    "state missing": ("state.pt", lambda content: None, "is incomplete: state.pt is missing"),
    "manifest missing": ("manifest.json", lambda content: None, "is incomplete: manifest.json is missing"),
    "manifest a list": ("manifest.json", lambda content: b"[]", _NO_MANIFEST),
    "manifest without files": ("manifest.json", lambda content: b"{}", _NO_MANIFEST),
    "a file instead of a folder": ("", lambda content: b"", "is a file, and a checkpoint is a folder"),
}


def harm(checkpoint: Path, damage: str) -> None:
    name, change, _ = DAMAGE[damage]
    if not name:
        checkpoint.rename(checkpoint.with_name(f"moved-{checkpoint.name}"))
        checkpoint.write_text("")
    elif (content := change((checkpoint / name).read_bytes())) is None:
        (checkpoint / name).unlink()
    else:
        (checkpoint / name).write_bytes(content)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_skipped_with_the_reason_and_if_all_are_damaged_no_new_run_starts(
    tmp_path: Path, damage: str
) -> None:
    save(tmp_path, 1, 2)
    harm(tmp_path / "step-00000002", damage)
    step, (skipped, taken) = resumed(tmp_path)
    assert (step, taken) == (1, f"resume: {tmp_path}/step-00000001")
    assert skipped.startswith("resume: skipped ") and "step-00000002" in skipped
    assert DAMAGE[damage][2] in skipped
    harm(tmp_path / "step-00000001", damage)
    with pytest.raises(UserError, match=r"every checkpoint in .* is incomplete or damaged \(2 in all\)"):
        resumed(tmp_path)


def test_no_random_flip_or_cut_is_taken_for_a_saved_state(tmp_path: Path) -> None:
    """RANDOM_DAMAGE=1000 makes 1,000."""
    save(tmp_path, 1, 2)
    contents = {file: file.read_bytes() for file in sorted((tmp_path / "step-00000002").iterdir())}
    chance = Random(30)
    for _ in range(int(os.environ.get("RANDOM_DAMAGE", "300"))):
        file, content = chance.choice([*contents.items()])
        start = max(0, content.find(b'"files"'))  # a manifest has also what is not read
        position = chance.randrange(start, len(content))
        if chance.random() < 0.5:
            flipped = bytes([content[position] ^ 1 << chance.randrange(8)])
            file.write_bytes(content[:position] + flipped + content[position + 1 :])
        else:
            os.truncate(file, chance.randrange(len(content)))
        step, told = resumed(tmp_path)  # compares the tensors, too
        assert step == 1 and told[0].startswith("resume: skipped a checkpoint: "), (file, position)
        file.write_bytes(content)
    assert resumed(tmp_path)[0] == 2


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_only_the_newest_are_kept(tmp_path: Path, keep: int) -> None:
    save(tmp_path, 1, 2, 3, 4, 5, keep=keep)
    assert names(tmp_path) == [f"step-{step:08d}" for step in range(6 - keep, 6)]


def test_what_an_interrupted_save_left_is_removed(tmp_path: Path) -> None:
    save(tmp_path, 1)
    for leftover in (".unfinished-step-00000002", ".unfinished-old-step-00000000"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "state.pt").write_bytes(b"half")
    assert resumed(tmp_path)[0] == 1, "and is never taken for a checkpoint"
    Checkpoints(tmp_path, keep=1)
    assert names(tmp_path) == ["step-00000001"]


def test_other_files_in_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("keep me")
    save(tmp_path, 1, 2, keep=1)
    assert names(tmp_path) == ["notes.txt", "step-00000002"]


def test_a_step_saved_again_replaces_the_damaged_one(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    harm(tmp_path / "step-00000002", "state truncated")
    save(tmp_path, 2)
    assert resumed(tmp_path) == (2, [f"resume: {tmp_path}/step-00000002"])


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match=rf"^checkpoint_dir: cannot write {folder}: "):
            Checkpoints(folder, keep=1)


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_full_disk_is_reported_at_wait_and_leaves_older_ones_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    save(tmp_path, 1)
    real, calls = os.fsync, 0

    def full_disk(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full_disk)
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(2, {"step": 2, "model": {"w": torch.full((9,), 2.0)}})
    with pytest.raises(UserError, match=rf"cannot save a checkpoint in {tmp_path}: No space .* checkpoints are intact"):
        checkpoints.wait()
    assert calls == call
    assert step_in(read_checkpoint(tmp_path / "step-00000001")) == 1
    # Started again when the disk has room, what failed leaves no trace.
    save(tmp_path, 3, keep=1)
    assert names(tmp_path) == ["step-00000003"]
    assert resumed(tmp_path)[0] == 3


def test_a_failed_save_is_reported_by_the_next_one_too(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "folder", keep=1)
    shutil.rmtree(tmp_path / "folder")
    (tmp_path / "folder").write_text("now a file")
    checkpoints.save(1, {})
    with pytest.raises(UserError, match=r"cannot save a checkpoint in .*folder: "):
        checkpoints.save(2, {})
    checkpoints.wait()  # told once


@pytest.mark.parametrize("leftover", ["step-00000001", "step-00000003", ".unfinished-step-00000009", ".unfinished-x"])
def test_what_nfs_does_not_remove_is_a_warning_and_no_checkpoint_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leftover: str
) -> None:
    save(tmp_path, 1, 2, 3)
    (tmp_path / leftover).mkdir(exist_ok=True)
    (tmp_path / leftover / "open").touch()
    real = os.unlink

    def like_nfs(path: str, *, dir_fd: int | None = None) -> None:
        """An open file gets another name in place of being removed."""
        if Path(path).name == "open":
            os.rename(path, path + ".nfs1", src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        elif not path.endswith(".nfs1"):
            real(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", like_nfs)
    said: list[str] = []
    for _ in range(2):  # and again at the next start
        checkpoints = Checkpoints(tmp_path, 2, said.append)
        for step in (3, 9):
            checkpoints.save(step, {"step": step, "model": {"w": torch.full((9,), float(step))}})
            checkpoints.wait()
    assert all(text.startswith(f"warning: cannot remove {tmp_path}/.unfinished-old-") for text in said) and said
    assert [name for name in names(tmp_path) if name.startswith("step")] == ["step-00000003", "step-00000009"]
    assert resumed(tmp_path)[0] == 9
