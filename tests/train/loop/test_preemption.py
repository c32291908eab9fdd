"""A signal in an evaluation: all ranks cut it short, save and end, and the next start makes up for it."""

import itertools
import os
import resource
import signal
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

from tests.cli import records
from tests.idx import write_small_mnist
from tests.ranks import launched, train_on_ranks
from train.__main__ import main
from train.trainer import Trainer

# Dropout and momentum: both would show a random state or an optimizer that was not restored.
_SETTINGS = ("--model=mnist_cnn", "--dataset=mnist", "--optimizer=sgd", "--momentum=0.9", "--batch-size=20")
_STOPPED = 143
_MOST_BYTES = 2**26  # larger than a checkpoint


def _flags(data: Path, folder: Path, *more: str) -> list[str]:
    kept = [f"--run-dir={folder}", f"--checkpoint-dir={folder / 'checkpoints'}", "--resume=auto", "--log-every=2"]
    return [*_SETTINGS, f"--data-root={data}", *kept, *more]


def _signalled(flags: list[str], rank: int, number: int, method: str, call: int, full: bool = False) -> tuple[int, str]:
    """`python -m train FLAGS`, in which a rank signals itself; return the exit code and what was printed.

    method, call: the method of the Trainer in which it does so, and in which of its calls.
    full: from then on no file can grow beyond `_MOST_BYTES`, as on a full disk.
    """
    real, calls = getattr(Trainer, method), itertools.count(1)

    def signals_itself(*arguments: Any) -> Any:
        if int(os.environ["RANK"]) == rank and next(calls) == call:
            if full:
                resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_BYTES, _MOST_BYTES))
            os.kill(os.getpid(), number)
        return real(*arguments)

    said = StringIO()
    with mock.patch.object(Trainer, method, signals_itself), redirect_stdout(said), redirect_stderr(said):
        return main(flags), said.getvalue()


def test_a_signal_to_one_rank_in_the_evaluation_cuts_it_short_and_the_next_start_makes_up_for_it(
    tmp_path: Path,
) -> None:
    write_small_mnist(tmp_path, 1000, 5_000)
    # Averages stand in for the weights in an evaluation, and must not be saved as them.
    flags, whole = (_flags(tmp_path, tmp_path / name, "--max-steps=10", "--ema=0.9") for name in ("run", "whole"))
    assert [code for code, _ in launched(2, _signalled, flags, 1, signal.SIGTERM, "_measured", 1)] == [_STOPPED] * 2
    assert records(tmp_path / "run", "epoch") == []
    assert [stop["step"] for stop in records(tmp_path / "run", "stop")] == [10]

    train_on_ranks(2, *flags)
    train_on_ranks(2, *whole)
    (end,), (expected,) = (records(tmp_path / name, "end") for name in ("run", "whole"))
    assert end["weights_sha256"] == expected["weights_sha256"]
    (epoch,) = records(tmp_path / "run", "epoch")
    assert (epoch["epoch"], epoch["step"], epoch["samples"]) == (1, 10, 200)
    assert len(records(tmp_path / "run", "step")) == 10
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000010"]


def test_a_stop_whose_record_finds_the_disk_full_has_saved_and_says_so(tmp_path: Path) -> None:
    write_small_mnist(tmp_path, 1000, 5_000)
    file = tmp_path / "run" / "metrics.jsonl"
    file.parent.mkdir()
    file.touch()
    os.truncate(file, _MOST_BYTES)
    flags = _flags(tmp_path, file.parent, "--max-steps=10")
    (code, said), other = launched(2, _signalled, flags, 0, signal.SIGTERM, "_measured", 1, True)
    assert (code, other[0]) == (1, _STOPPED)
    assert "stopped by a signal at epoch 1, step 10; saved, --resume=auto" in said
    assert f"error: --run-dir: cannot write {file}: File too large\n" in said
    assert "Traceback" not in said
    assert [path.name for path in (file.parent / "checkpoints").glob("step-*")] == ["step-00000010"]
