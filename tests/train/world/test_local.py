"""`--procs N` trains as torchrun does, and the first failure ends all ranks and is named."""

import subprocess
from pathlib import Path

import pytest

from tests.cli import train

_FLAGS = ["--model=mlp", "--batch-size=500", "--device=cpu", "--lr=0.1"]


def _procs(number: str, *flags: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return train(1, f"--procs={number}", *flags, **extra)


@pytest.mark.parametrize(
    ("rank", "fault", "reason"),
    [
        ("1", 'sys.modules["train.loop"] = None', "ModuleNotFoundError: "),
        ("1", 'os.environ["LOCAL_RANK"] = "5"', "LOCAL_RANK is 5, "),  # a mistake that rank 0 does not print
    ],
)
def test_the_first_failure_ends_all_and_its_rank_stands_last(
    rank: str, fault: str, reason: str, tmp_path: Path
) -> None:
    broken = f'import os, sys\nif os.environ.get("RANK") == "{rank}":\n    {fault}\n'
    (tmp_path / "sitecustomize.py").write_text(broken)
    ended = _procs("2", *_FLAGS, PYTHONPATH=str(tmp_path))
    assert ended.returncode == 1
    assert reason in ended.stderr
    assert ended.stderr.endswith(f"rank {rank} failed first (exit code 1)\n"), ended.stderr


# What rank 1 does when it is about to wrap the model.
_WHEN_WRAPPING = """import os, signal, sys
class WhenWrapping:
    def find_spec(self, name, *_):
        if name == "train.strategies.custom_ddp":
            {action}
if os.environ.get("RANK") == "1":
    sys.meta_path.insert(0, WhenWrapping())
"""


def test_a_rank_that_ends_with_0_in_mid_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_WHEN_WRAPPING.format(action="os._exit(0)"))
    ended = _procs("2", *_FLAGS, PYTHONPATH=str(tmp_path))
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last == "rank 0 failed first (exit code 1); before that, rank 1 ended with exit code 0", ended.stderr


def test_a_signal_to_one_rank_alone_stops_all_and_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_WHEN_WRAPPING.format(action="os.kill(os.getpid(), signal.SIGUSR1)"))
    ended = _procs("2", *_FLAGS, "--epochs=1000", f"--checkpoint-dir={tmp_path / 'c'}", PYTHONPATH=str(tmp_path))
    assert ended.returncode == 143
    assert ended.stderr == "" and "stopped by a signal at epoch 1, step 1; saved, " in ended.stdout


@pytest.mark.parametrize(
    ("flags", "mistake"),
    [
        (["--run-dir=/dev/null/folder"], "--run-dir: cannot write"),
        (["--modle=mlp"], "--modle: unknown flag"),
    ],
)
def test_mistake_of_the_user_is_printed_once(flags: list[str], mistake: str) -> None:
    ended = _procs("2", *_FLAGS, *flags)
    assert ended.returncode == 1
    assert (ended.stderr.count(mistake), ended.stderr.count("error: ")) == (1, 1), ended.stderr


@pytest.mark.parametrize(
    ("number", "extra", "reason"),
    [
        ("0", {}, '--procs: "0" is not accepted; it must be a whole number above 0'),
        pytest.param("9" * 5000, {}, '9" is not accepted; it must be a whole number above 0', id="too long for int"),
        (
            "2",
            {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
            "environment has started this one as rank 1 of 2: leave out --procs",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(number: str, extra: dict[str, str], reason: str) -> None:
    ended = _procs(number, *_FLAGS, **extra)
    assert ended.returncode == 1
    assert reason in ended.stderr
    assert ended.stdout == ""
