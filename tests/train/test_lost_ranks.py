"""A rank that is killed: the others end within seconds, and say in a line or two what they know of it."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli import start_ranks

pytestmark = pytest.mark.timeout(300)

# Where a failure shows: in CustomDDP's own wait, or in a collective that is not ours.
WAYS = {
    "CustomDDP over the network": ["--sync=bf16"],
    "native DDP": ["--strategy=ddp"],
}


def _start(tmp_path: Path, way: str) -> list[subprocess.Popen[str]]:
    """Three ranks that train; rank 0 serves the store."""
    flags = ["--model=mnist_cnn", "--device=cpu", "--batch-size=96", "--epochs=1000", "--log-every=2", *WAYS[way]]
    ranks = start_ranks(3, *flags, f"--run-dir={tmp_path}")
    assert ranks[0].stdout is not None
    said = []
    for line in ranks[0].stdout:
        said.append(line)
        if line.startswith("epoch 1/"):
            return ranks
    pytest.fail(f"it ended before: {''.join(said)}")


def _message(rank: subprocess.Popen[str]) -> list[str]:
    """The lines of the one paragraph with which a rank ended."""
    _, stderr = rank.communicate(timeout=120)
    assert rank.returncode == 1
    before, paragraph = stderr.split("error: ")
    assert "Traceback" not in before and "frame #" not in stderr
    return paragraph.splitlines()


@pytest.mark.parametrize("way", WAYS)
def test_survivors_of_rank_0_say_that_the_store_is_gone_and_accuse_nobody(way: str, tmp_path: Path) -> None:
    killed, *others = _start(tmp_path, way)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    for rank in others:
        what, who = _message(rank)
        assert "were not averaged: " in what or what.startswith("a message between the processes failed: ")
        assert who.startswith("which ranks are missing is not known: the store at 127.0.0.1:")
        assert "Rank 0, or the torchrun of its node" in who


@pytest.mark.parametrize("way", WAYS)
def test_survivors_of_another_rank_name_it(way: str, tmp_path: Path) -> None:
    first, killed, last = _start(tmp_path, way)
    killed.kill()
    what, *who = _message(first)
    assert "were not averaged: " in what or what.startswith("a message between the processes failed: ")
    # The last rank may have noticed nothing until the first one ended.
    assert who[-1].startswith("no word within 5 s from rank 1")
    assert len(_message(last)) <= 3
    assert killed.wait() == -signal.SIGKILL
