"""Each mistake of a person ends in one paragraph without a traceback and with exit code 1 on every rank."""

import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

from tests.cli import start_ranks, train
from tests.idx import write_small_mnist

_QUICK = ["--model=mlp", "--max-steps=2"]


class Mistake(NamedTuple):
    """Flags and environment of two ranks, and what the message must say; `{tmp}` is a folder of the test's own."""

    flags: list[str]
    says: list[str]
    environ: Mapping[str, str] = MappingProxyType({})
    prepare: Callable[[Path, str], object] = lambda tmp, python: None


def _truncate_a_file(tmp: Path, python: str) -> None:
    write_small_mnist(tmp, 20, 20)
    file = tmp / "MNIST" / "raw" / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-100])


@cache
def _checkpoint_of_an_mlp(python: str) -> Path:
    folder = Path(python).parent / "checkpoints"  # which goes with that Python
    assert train(1, *_QUICK, f"--checkpoint-dir={folder}", python=python).returncode == 0
    return folder


def _save_a_checkpoint_of_an_mlp(tmp: Path, python: str) -> None:
    shutil.copytree(_checkpoint_of_an_mlp(python), tmp, dirs_exist_ok=True)


MISTAKES = {
    "unknown model": Mistake(["--model=resnet81"], ['"resnet81" is not one of', 'did you mean "resnet18"?']),
    "unknown dataset": Mistake(["--dataset=minst"], ['"minst" is not one of', 'did you mean "mnist"?']),
    "unknown flag": Mistake(["--batchsize=3"], ["--batchsize", "did you mean --batch-size?"]),
    "several at once": Mistake(
        ["--model=resnet81", "--epochs=0", "--optimizer=adm"], ["3 problems", "--model", "--epochs", "--optimizer"]
    ),
    "missing data files": Mistake(
        ["--dataset=fashion_mnist", "--data-root={tmp}"],
        ["FashionMNIST/raw/train-images-idx3-ubyte is missing: put it there", "--data-root"],
    ),
    "truncated data file": Mistake(
        ["--dataset=mnist", "--data-root={tmp}"],
        ["cannot read", "train-images-idx3-ubyte", "[20, 28, 28]", "Replace it"],
        prepare=_truncate_a_file,
    ),
    "batch smaller than the world": Mistake([*_QUICK, "--batch-size=1"], ["--batch-size is 1", "2 processes"]),
    "no device for the rank": Mistake(
        [*_QUICK, "--device=cuda"], ["LOCAL_RANK is 0 but torch sees 0 CUDA devices"], {"CUDA_VISIBLE_DEVICES": ""}
    ),
    "tf32 on a CPU": Mistake([*_QUICK, "--precision=tf32", "--device=cpu"], ["tf32 needs a GPU with Ampere or newer"]),
    "single strategy on two processes": Mistake(
        [*_QUICK, "--strategy=single"], ["--strategy=single trains one process, but 2 were started"]
    ),
    "name that does not resolve": Mistake(
        [*_QUICK, "--rendezvous-timeout-s=1"],
        ['MASTER_ADDR is "no-such-host.invalid"', "does not resolve", "tried for 1 s"],
        {"MASTER_ADDR": "no-such-host.invalid"},
    ),
    "variable that is no number": Mistake(
        _QUICK, ['MASTER_PORT="http"', "must be a whole number"], {"MASTER_PORT": "http"}
    ),
    "checkpoint of another model": Mistake(
        ["--model=mnist_bn", "--checkpoint-dir={tmp}", "--resume=auto"],
        ['model was "mlp" and is "mnist_bn"', "--checkpoint-dir"],
        prepare=_save_a_checkpoint_of_an_mlp,
    ),
    "checkpoints of an earlier run": Mistake(
        [*_QUICK, "--checkpoint-dir={tmp}"],
        ["of an earlier run", "--resume=auto"],
        prepare=_save_a_checkpoint_of_an_mlp,
    ),
    "loss that is not finite": Mistake([*_QUICK, "--lr=1e30"], ["loss", "a lower --lr"]),
}


def _ended(ranks: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Exit code and standard error of each rank."""
    ends = []
    for rank in ranks:
        _, stderr = rank.communicate()
        ends.append((rank.returncode, stderr))
    return ends


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_ends_in_one_paragraph_and_exit_code_1_on_every_rank(name: str, python: str, tmp_path: Path) -> None:
    mistake = MISTAKES[name]
    mistake.prepare(tmp_path, python)
    flags = [flag.replace("{tmp}", str(tmp_path)) for flag in mistake.flags]
    ends = _ended(start_ranks(2, *flags, python=python, **mistake.environ))
    assert [code for code, _ in ends] == [1, 1]
    assert all("Traceback" not in stderr for _, stderr in ends)
    for phrase in mistake.says:
        assert phrase in ends[0][1]
    before, *paragraphs = ends[0][1].split("error: ")
    assert len(paragraphs) == 1
    assert not before or re.fullmatch(r"note: could not download .*\n", before)


def test_port_in_use_is_named_on_every_rank(python: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        ends = _ended(start_ranks(2, *_QUICK, "--rendezvous-timeout-s=3", python=python, MASTER_PORT=port))
    assert [code for code, _ in ends] == [1, 1]
    assert f"rank 0 has to listen on MASTER_PORT {port}" in ends[0][1]
    assert "but it is not rank 0 of this job" in ends[1][1]
    assert all("Traceback" not in stderr for _, stderr in ends)


def test_a_mistake_on_one_rank_ends_all_and_is_named_with_its_rank(python: str, tmp_path: Path) -> None:
    write_small_mnist(tmp_path / "0", 20, 20)
    ranks = start_ranks(2, *_QUICK, "--dataset=mnist", f"--data-root={tmp_path}/{{rank}}", python=python)
    ends = _ended(ranks)
    assert [code for code, _ in ends] == [1, 1]
    assert "rank 1: " in ends[0][1]
    assert "train-images-idx3-ubyte is missing" in ends[0][1]


def test_a_rank_that_never_arrives_is_named(python: str) -> None:
    first, second = start_ranks(2, *_QUICK, "--rendezvous-timeout-s=5", python=python)
    second.kill()
    second.communicate()
    ((code, stderr),) = _ended([first])
    assert code == 1
    assert "1 of 2 processes did not arrive" in stderr
    assert "rank 1" in stderr


def test_under_torchrun_the_paragraph_is_there_too() -> None:
    outcome = train(2, "--model=resnet81")
    assert outcome.returncode == 1
    # Once a rank at most: torchrun may end the second before it has read its settings.
    said, _, table = outcome.stderr.partition("Failures:")
    assert said.count('did you mean "resnet18"?') in (1, 2)
    assert 'did you mean "resnet18"?' in table
