"""One run at a time owns a folder: another one is refused, the next start of the same job is not."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli import ROOT, environment, train
from train.errors import UserError
from train.world import owner
from train.world.owner import Owner

_SLURM = {"SLURM_JOB_ID": "7"}
_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "PET_MASTER_ADDR": "fmnist-0.fmnist"}
# Owns a folder until its stdin is closed.  With BOOT it looks like one on another machine.
_OWN = """import os, select, sys
from pathlib import Path
from train.world import owner
if "BOOT" in os.environ:
    owner._process = lambda pid, process=owner._process: [os.environ["BOOT"], *process(pid)[1:]]
own = owner.Owner(Path(sys.argv[1]), print)
print("owned", flush=True)
while not select.select([sys.stdin], [], [], 0.1)[0]:
    own.renew()
own.release()
"""


@contextmanager
def _owned(folder: Path, **extra: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _OWN, str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env=environment(**extra), text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "owned\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("where", [{}, {"BOOT": "of another machine"}], ids=["here", "elsewhere"])
def test_a_second_run_is_refused_and_the_holder_named_while_the_first_is_alive(
    where: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not where:
        monkeypatch.setattr(owner, "_SILENCE_S", 1.0)
    with _owned(tmp_path, **_SLURM, **where) as first:
        told: list[str] = []
        with pytest.raises(UserError, match=rf"a run that has not ended: Slurm job 7 \(host .*, pid {first.pid}\)"):
            Owner(tmp_path, told.append, {})
        assert len(told) == 1 and "Slurm job 7 (" in told[0] and " s for its end" in told[0]


def test_a_stopped_owner_on_this_machine_is_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "_SILENCE_S", 1.0)
    with _owned(tmp_path) as first:
        os.kill(first.pid, signal.SIGSTOP)
        with pytest.raises(UserError, match=f"pid {first.pid}"):
            Owner(tmp_path, print, {})


def test_a_folder_that_was_released_or_whose_owner_was_killed_is_free_at_once(tmp_path: Path) -> None:
    for end in ("release", "kill"):
        with _owned(tmp_path) as first:
            if end == "kill":
                first.kill()
            assert first.stdin is not None
            first.stdin.close()
            first.wait()
        assert (tmp_path / ".owner.json").exists() == (end == "kill")
        Owner(tmp_path, pytest.fail, {}).release()


def test_a_run_on_this_machine_that_still_saves_since_its_launcher_was_killed_is_waited_for(tmp_path: Path) -> None:
    with _owned(tmp_path) as first:
        Owner(tmp_path, lambda text: first.kill(), {}).release()


@pytest.mark.parametrize("job", [_SLURM, _POD], ids=["Slurm requeue", "pod that comes back"])
def test_the_same_job_takes_over_at_once_from_another_node_and_the_former_process_ends(
    job: Mapping[str, str], tmp_path: Path
) -> None:
    with _owned(tmp_path, BOOT="of another machine", **job) as first:
        second = Owner(tmp_path, pytest.fail, job)
        assert first.wait() == 1
        assert first.stdout is not None and "was taken over by " in first.stdout.read()
        second.release()


def test_another_job_takes_over_from_another_node_without_a_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "_SILENCE_S", 1.0)
    with _owned(tmp_path, BOOT="of another machine", **_SLURM) as first:
        first.kill()
        first.wait()
    told: list[str] = []
    Owner(tmp_path, told.append, {"SLURM_JOB_ID": "8"}).release()
    assert len(told) == 1


def test_a_run_in_the_folder_of_another_one_is_refused_before_it_changes_anything(tmp_path: Path) -> None:
    with _owned(tmp_path, **_SLURM):
        flags = ["--model=mlp", "--device=cpu", "--max-steps=1", f"--checkpoint-dir={tmp_path}"]
        second = train(1, "--procs=2", *flags)
    assert second.returncode == 1
    assert second.stderr.count("error: ") == 1 and "Slurm job 7 (" in second.stderr, second.stderr
    assert [path.name for path in tmp_path.iterdir()] == [".owner.json"]
