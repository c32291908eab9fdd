"""fsdp and pipeline save their parts and resume, also on another number of processes and as the other of the two."""

import errno
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.cli import records, train
from tests.ranks import run_ranks, train_on_ranks
from tests.train.devices import needs_fsdp_on_cpus
from train.checkpoints.sharded import ShardedCheckpoints
from train.datasets import tokens
from train.errors import SharedError
from train.world.environment import World

PAGES = sorted((Path(__file__).parents[3] / "docs").glob("*.md"))[:1]
FSDP, PIPELINE = "--strategy=fsdp", "--strategy=pipeline"


class Leg(NamedTuple):
    """A part of a run: until which step, on how many processes, how."""

    until: int
    world_size: int
    strategy: str


def _losses(folder: Path, data: list[str], legs: list[Leg]) -> list[float]:
    for leg in legs:
        kept = [f"--run-dir={folder}", f"--checkpoint-dir={folder / 'checkpoints'}", "--resume=auto"]
        if leg.strategy == "--strategy=single":
            kept = kept[:1]
        train_on_ranks(leg.world_size, *data, *kept, leg.strategy, "--accumulate=4", f"--max-steps={leg.until}")
    assert [record["step"] for record in records(folder, "step")] == [*range(1, legs[-1].until + 1)]
    assert len(bytes.fromhex(records(folder, "end")[-1]["weights_sha256"])) == 32
    return [record["loss"] for record in records(folder, "step")]


def _compare(tmp_path: Path, data: list[str], legs: list[Leg]) -> None:
    whole = _losses(tmp_path / "whole", data, [Leg(legs[-1].until, 1, "--strategy=single")])
    assert _losses(tmp_path / "legs", data, legs) == pytest.approx(whole, rel=1e-4)


@needs_fsdp_on_cpus
@pytest.mark.slow
def test_stopped_and_resumed_on_1_2_and_4_processes(tmp_path: Path) -> None:
    # Adam's state would show if it were not restored, or restored for another parameter.
    data = ["--model=mlp", "--batch-size=64", "--optimizer=adamw", "--lr=1e-3"]
    legs = [Leg(2, 2, FSDP), Leg(4, 4, FSDP), Leg(6, 1, FSDP), Leg(8, 2, PIPELINE)]
    _compare(tmp_path, data, legs)


@needs_fsdp_on_cpus
@pytest.mark.slow
def test_the_stages_of_a_gpt_are_resumed_on_another_number_of_processes(tmp_path: Path) -> None:
    tokens.write(PAGES, tmp_path, context=16)
    data = ["--model=gpt", "--dataset=tokens", f"--data-root={tmp_path}", "--batch-size=8", "--lr=0.05"]
    legs = [Leg(2, 2, PIPELINE), Leg(4, 4, PIPELINE), Leg(6, 1, PIPELINE), Leg(8, 2, FSDP)]
    _compare(tmp_path, [*data, "--momentum=0.9"], legs)


@needs_fsdp_on_cpus
@pytest.mark.slow
def test_a_damaged_part_is_skipped_and_another_strategy_refused(tmp_path: Path) -> None:
    quick = ["--model=mlp", "--batch-size=64", f"--checkpoint-dir={tmp_path}", "--resume=auto", "--checkpoint-every=2"]
    train_on_ranks(2, *quick, "--max-steps=4", FSDP)
    [part, *_] = sorted((tmp_path / "step-00000004").glob("*1_0.distcp"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    said = train(2, *quick, "--max-steps=4", FSDP).stdout
    assert f"step-00000004 is damaged: the size or SHA-256 of {part.name} is not the one in manifest.json" in said
    assert f"resume: {tmp_path / 'step-00000002'}" in said
    with pytest.raises(RuntimeError, match="saved with --strategy=fsdp, each rank's part in separate files, which s"):
        train_on_ranks(1, *quick, "--max-steps=6", "--strategy=single")


def _save(world: World, folder: str, own_folders: bool, fails: bool) -> str:
    where = Path(folder) / str(world.rank) if own_folders else Path(folder)
    checkpoints = ShardedCheckpoints(where, print, world)
    if fails and world.rank == 1:

        def full(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        torch.save = full
    checkpoints.save(1, {"shards": {f"weight {world.rank}": torch.ones(3)}})
    return "saved"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own_folders", "fails", "says"),
    [(True, False, "is not the same folder as on rank 0"), (False, True, "rank 1: .*older checkpoints are intact")],
)
def test_a_rank_that_cannot_write_where_the_others_do_ends_all(
    tmp_path: Path, own_folders: bool, fails: bool, says: str
) -> None:
    with pytest.raises(RuntimeError, match=f"{SharedError.__name__}.*{says}"):
        run_ranks(2, _save, str(tmp_path), own_folders, fails)


@pytest.mark.slow
def test_rank_0_removes_what_an_interrupted_save_left(tmp_path: Path) -> None:
    leftover = tmp_path / ".unfinished-step-00000007"
    leftover.mkdir()
    run_ranks(1, _save, str(tmp_path), False, False)
    assert not leftover.exists()
