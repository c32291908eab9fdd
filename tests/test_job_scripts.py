"""The scripts under jobs/scripts, which people copy."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

JOBS = Path(__file__).parents[1] / "jobs"

# Runs own.py as the only process and prints how many threads there are before, at the end of training, and after.
_THREADS = """
import os, runpy
import torch.distributed as dist

def threads():
    return len(os.listdir("/proc/self/task"))

def counted():
    print(threads())
    destroy()

destroy, dist.destroy_process_group = dist.destroy_process_group, counted
print(threads())
runpy.run_path({script!r}, run_name="__main__")
print(threads())
"""


def test_no_script_hides_a_module_of_python() -> None:
    """The folder of a script that torchrun starts is the first place where its imports are looked for."""
    assert not {file.stem for file in (JOBS / "scripts").glob("*.py")} & sys.stdlib_module_names


def with_custom_ddp(script: str) -> str:
    """The script with nothing changed but the class that averages its gradients."""
    plain = script.replace("import torch.distributed.nn  #", "#")
    ours = plain.replace("torch.nn.parallel import DistributedDataParallel", "train import CustomDDP")
    return ours.replace("DistributedDataParallel(", "CustomDDP(")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc, which only Linux has")
@pytest.mark.parametrize("written", [str, with_custom_ddp], ids=["as it is", "with CustomDDP"])
def test_own_script_leaves_no_thread_that_could_abort_the_end_of_its_process(
    written: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(written((JOBS / "scripts" / "own.py").read_text()))
    job = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", _THREADS.format(script=str(tmp_path / "own.py"))],
        cwd=JOBS.parent,
        env={**os.environ, **job, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    before, during, after = (int(line) for line in done.stdout.splitlines() if line.isdigit())
    assert after == before < during
