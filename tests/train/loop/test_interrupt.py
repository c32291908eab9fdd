"""Ctrl-C in a real terminal: the run saves, ends with a few lines, and the next start goes on at the next step."""

import fcntl
import os
import pty
import struct
import sys
import termios
from pathlib import Path

import pytest

from tests.cli import ROOT, command, environment, records
from tests.idx import write_small_mnist
from tests.ranks import train_on_ranks

_STOPPED = 143
_CTRL_C = b"\x03"
_STEPS = 120
# Python runs this at its start: a rank waits in the middle of the epoch until it has been interrupted.
_WAITS = """
import itertools, signal, time
from torch.optim.optimizer import register_optimizer_step_pre_hook
steps = itertools.count(1)
def wait(*_):
    if next(steps) == 60:
        while not signal.getsignal(signal.SIGINT).__self__.heard:
            time.sleep(0.01)
register_optimizer_step_pre_hook(wait)
"""


class Terminal:
    """A program that a person started in a terminal of its own, with a folder where its imports are looked for."""

    def __init__(self, argv: list[str], imports: Path) -> None:
        self.pid, self.screen = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execve(argv[0], argv, environment(PYTHONPATH=f"{imports}:{ROOT}"))
        fcntl.ioctl(self.screen, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))  # no bar fits in no columns
        self.shown = ""

    def read_until(self, text: str | None) -> str:
        """Return what appears up to `text`, or all that still appears if it is None."""
        start = len(self.shown)
        while text is None or text not in self.shown[start:]:
            try:
                shown = os.read(self.screen, 65536)
            except OSError:  # the last program has closed the terminal
                shown = b""
            if not shown:
                assert text is None, self.shown
                break
            self.shown += shown.decode(errors="replace")
        return self.shown[start:]

    def press_ctrl_c(self) -> None:
        os.write(self.screen, _CTRL_C)

    def exit_code(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _flags(folder: Path) -> list[str]:
    if not (folder / "data").exists():
        write_small_mnist(folder / "data", 20 * _STEPS, 100)
    kept = [f"--run-dir={folder}", f"--checkpoint-dir={folder / 'checkpoints'}", "--resume=auto", "--log-every=2"]
    return ["--model=mnist_cnn", "--dataset=mnist", f"--data-root={folder / 'data'}", "--batch-size=20", *kept]


def _interrupt(folder: Path, argv: list[str]) -> tuple[int, list[str]]:
    """Press Ctrl-C in the first epoch; return the exit code and the lines that appear from then on."""
    (folder / "sitecustomize.py").write_text(_WAITS)
    terminal = Terminal(argv, folder)
    terminal.read_until("epoch 1/1")
    terminal.press_ctrl_c()
    lines = terminal.read_until(None).splitlines()
    (stop,) = records(folder, "stop")
    assert 0 < stop["step"] < _STEPS
    assert f"stopped by a signal at epoch 1, step {stop['step']}; saved, --resume=auto continues there" in lines
    return terminal.exit_code(), lines


def _finish(world_size: int, folder: Path) -> None:
    train_on_ranks(world_size, *_flags(folder))
    assert [record["step"] for record in records(folder, "step")] == [*range(1, _STEPS + 1)]


@pytest.mark.parametrize(
    ("world_size", "more"),
    # Also in the foreground of the terminal are the loader's workers, but not the ranks of --procs.
    [(1, ["--input=loader", "--workers=2"]), (2, ["--procs=2"])],
    ids=["loader", "procs"],
)
def test_ctrl_c_saves_and_ends_with_a_few_lines(world_size: int, more: list[str], tmp_path: Path) -> None:
    code, lines = _interrupt(tmp_path, command(1, *_flags(tmp_path), *more))
    assert code == _STOPPED
    assert len(lines) < 10, lines
    assert "failed" not in "".join(lines), lines
    _finish(world_size, tmp_path)


def test_ctrl_c_at_torchrun_saves_and_its_processes_add_only_a_few_lines(tmp_path: Path) -> None:
    _, lines = _interrupt(tmp_path, command(2, *_flags(tmp_path)))
    # From its own traceback on it is torchrun that writes, which nobody can keep it from.
    own = lines[: lines.index("Traceback (most recent call last):")]
    assert len(own) < 10, own
    assert "/train/" not in "".join(lines)
    _finish(2, tmp_path)


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    # Its one step takes minutes, so the first Ctrl-C cannot end it.
    batch = ["--batch-size=500000", "--dataset=synthetic", "--model=resnet18", f"--checkpoint-dir={tmp_path}"]
    terminal = Terminal([sys.executable, "-m", "train", *batch], tmp_path)
    terminal.read_until("steps per epoch")
    terminal.press_ctrl_c()
    terminal.read_until("Ctrl-C again ends at once")
    terminal.press_ctrl_c()
    assert "Traceback" not in terminal.read_until(None)
    assert terminal.exit_code() == -2
    assert not [*tmp_path.glob("step-*")]
