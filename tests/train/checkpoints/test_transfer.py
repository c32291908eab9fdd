"""Large checkpoints: no wait for a disk stands under the timeout of a collective, and a state is read into one copy."""

import hashlib
import json
import pkgutil
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ranks import make_trainer, run_ranks
from tests.train.devices import needs_fsdp_on_cpus
from train.checkpoints.folder import Checkpoints, checkpoint_path, read_checkpoint
from train.loop.saving import load_on_all_ranks
from train.world.environment import World

_TIMEOUT_S = 30.0  # what the ranks do besides has to take less, also on a busy machine


def _trainer(world: World, *flags: str) -> Any:
    trainer = make_trainer(world, "--model=mlp", "--device=cpu", "--batch-size=64", "--max-steps=1", *flags)
    trainer.run.saving.files.close()
    return trainer.run


def _resumed_step(world: World, *flags: str) -> int:
    return int(_trainer(world, *flags).steps_done)


def _saved(world: World, *flags: str) -> None:
    trainer = _trainer(world, *flags)
    trainer.saving.save()
    trainer.saving.wait_until_saved()


def _with_slow_disk(world: World, function: Callable[..., Any], name: str, *flags: str) -> Any:
    """Call the function while one call of rank 1 (which writes the slowest), or of rank 0 alone, takes long."""
    real = pkgutil.resolve_name(name)

    def slow(*args: Any) -> Any:
        if world.rank == 1 or name.endswith("_sha256"):
            threading.Event().wait(1.5 * _TIMEOUT_S)
        return real(*args)

    pytest.MonkeyPatch().setattr(name, slow)
    return function(world, *flags)


def test_a_checkpoint_whose_hashing_takes_longer_than_the_timeout_of_a_collective_is_resumed(tmp_path: Path) -> None:
    flags = ["--resume=auto", f"--checkpoint-dir={tmp_path}"]
    run_ranks(2, _saved, *flags)
    slowly = (_resumed_step, "train.checkpoints.folder._sha256", *flags)
    assert run_ranks(2, _with_slow_disk, *slowly, collective_timeout_s=_TIMEOUT_S) == [0, 0]


@needs_fsdp_on_cpus
def test_a_part_whose_writing_takes_longer_than_the_timeout_of_a_collective_is_saved(tmp_path: Path) -> None:
    flags = ["--strategy=fsdp", "--resume=auto", f"--checkpoint-dir={tmp_path}"]
    slowly = (_saved, "torch.distributed.checkpoint.FileSystemWriter.write_data", *flags)
    run_ranks(2, _with_slow_disk, *slowly, collective_timeout_s=_TIMEOUT_S)
    assert run_ranks(2, _resumed_step, *flags) == [0, 0]
    [part, *_] = sorted(checkpoint_path(tmp_path, 0).glob("*1_0.distcp"))
    part.write_bytes(b"?")  # of the files that rank 1 or rank 0 verifies: both refuse
    with pytest.raises(RuntimeError, match=r"every checkpoint in .* is incomplete or damaged"):
        run_ranks(2, _resumed_step, *flags)


_STATE_MIB = 200


def _peak_of_loading(world: World, path: str) -> float:
    """MiB by which the peak of this process's memory grows while it loads a state."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    content = read_checkpoint(checkpoint_path(Path(path), 1)) if world.rank == 0 else None
    state = load_on_all_ranks(world, content)
    assert state is not None and state["weights"].numel() == _STATE_MIB * 2**18
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10


def test_loading_takes_the_state_and_one_copy_of_it_on_each_rank(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save(1, {"weights": torch.zeros(_STATE_MIB * 2**18)})
    checkpoints.wait()
    assert max(run_ranks(2, _peak_of_loading, str(tmp_path))) < 2.5 * _STATE_MIB


class _Touch:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path) -> None:
    """Its manifest has the right hash: whoever can write one file of the folder can write both."""
    flags = ["--resume=auto", f"--checkpoint-dir={tmp_path}"]
    run_ranks(1, _saved, *flags)
    state = checkpoint_path(tmp_path, 0) / "state.pt"
    torch.save({**torch.load(state, weights_only=True), "model": _Touch(tmp_path / "it-ran")}, state)
    manifest = json.loads((state.parent / "manifest.json").read_text())
    content = state.read_bytes()
    manifest["files"]["state.pt"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (state.parent / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RuntimeError, match="Weights only load failed"):
        run_ranks(1, _resumed_step, *flags)
    assert not (tmp_path / "it-ran").exists()
