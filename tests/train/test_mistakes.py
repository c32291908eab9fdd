"""A mistake of a person ends in one paragraph without a traceback and with exit code 1 on every rank.

A case for each stage of a start; the tests of that stage have its other mistakes.
"""

import re
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

from tests.cli import start_ranks, train
from tests.idx import write_small_mnist

_QUICK = ["--model=mlp", "--max-steps=2"]


class Mistake(NamedTuple):
    """Flags and environment of two ranks, and what rank 0 must say; `{tmp}` is a folder of the test's own."""

    flags: list[str]
    says: list[str]
    environ: Mapping[str, str] = MappingProxyType({})


MISTAKES = {
    "settings": Mistake(["--model=resnet81", "--epochs=0"], ["2 problems", 'did you mean "resnet18"?', "--epochs"]),
    "environment": Mistake(_QUICK, ['MASTER_PORT="http"', "must be a whole number"], {"MASTER_PORT": "http"}),
    "rendezvous": Mistake(
        [*_QUICK, "--rendezvous-timeout-s=1"],
        ['MASTER_ADDR is "no-such-host.invalid"', "does not resolve", "tried for 1 s"],
        {"MASTER_ADDR": "no-such-host.invalid"},
    ),
    "batch smaller than the world": Mistake([*_QUICK, "--batch-size=1"], ["--batch-size is 1", "2 processes"]),
    "tf32 on a CPU": Mistake([*_QUICK, "--precision=tf32", "--device=cpu"], ["tf32 needs a GPU with Ampere or newer"]),
    "data of one rank": Mistake(
        [*_QUICK, "--dataset=mnist", "--data-root={tmp}/{rank}"],
        ["rank 1: cannot read MNIST", "[20, 28, 28]", "1/MNIST/raw must hold", "undamaged"],
    ),
    "checkpoints of an earlier run": Mistake(
        [*_QUICK, "--checkpoint-dir={tmp}"], ["of an earlier run", "--resume=auto"]
    ),
    "loss that is not finite": Mistake([*_QUICK, "--lr=1e30"], ["loss", "a lower --lr"]),
}


def _ended(ranks: list[subprocess.Popen[str]]) -> list[str]:
    """Return what each rank wrote to stderr."""
    said = [rank.communicate()[1] for rank in ranks]
    assert {rank.returncode for rank in ranks} == {1} and "Traceback" not in "".join(said), said
    return said


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_ends_in_one_paragraph_and_exit_code_1_on_every_rank(name: str, tmp_path: Path) -> None:
    (tmp_path / "step-00000003").mkdir()
    (tmp_path / "step-00000003" / "manifest.json").write_text("{}")
    for rank in "01":
        write_small_mnist(tmp_path / rank, 20, 20)
    file = tmp_path / "1" / "MNIST" / "raw" / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-100])
    flags = [flag.replace("{tmp}", str(tmp_path)) for flag in MISTAKES[name].flags]
    first, _ = _ended(start_ranks(2, *flags, **MISTAKES[name].environ))
    assert not [phrase for phrase in MISTAKES[name].says if phrase not in first], first
    assert re.fullmatch(r"(note: could not download .*\n)?error: ((?!error: ).)*", first, re.DOTALL), first


def test_port_in_use_is_named_on_every_rank() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        first, second = _ended(start_ranks(2, *_QUICK, "--rendezvous-timeout-s=3", MASTER_PORT=port))
    assert f"rank 0 has to listen on MASTER_PORT {port}" in first
    assert "but it is not rank 0 of this job" in second


def test_a_rank_that_never_arrives_is_named() -> None:
    first, second = start_ranks(2, *_QUICK, "--rendezvous-timeout-s=5")
    second.kill()
    second.communicate()
    (said,) = _ended([first])
    assert "1 of 2 processes did not arrive" in said and "rank 1" in said


def test_under_torchrun_the_paragraph_is_there_too() -> None:
    outcome = train(2, "--model=resnet81")
    assert outcome.returncode == 1
    # Once a rank at most: torchrun may end the second before it has read its settings.
    said, _, table = outcome.stderr.partition("Failures:")
    assert said.count('did you mean "resnet18"?') in (1, 2)
    assert 'did you mean "resnet18"?' in table
