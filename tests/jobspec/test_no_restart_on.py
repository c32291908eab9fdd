"""With the real torchrun: an exit code of no_restart_on ends the job at once and is its exit code; others do not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobspec.artifact import render

pytestmark = pytest.mark.timeout(120)
_SPEC = """
name: job
nodes: 1
procs_per_node: 2
device: cpu
command: [mine.py, "{code}"]
max_restarts: 1
no_restart_on: [3, 42]
"""
_PROGRAM = """import os, sys
open(f"start-{os.environ['TORCHELASTIC_RESTART_COUNT']}", "w").close()
sys.exit(int(sys.argv[1]) if os.environ["RANK"] == "1" else 0)
"""


@pytest.mark.parametrize(
    ("code", "starts", "status"), [(42, 1, 42), (2, 2, 1), pytest.param(0, 1, 0, marks=pytest.mark.slow)]
)
def test_exit_code_decides_whether_torchrun_starts_the_processes_again(
    code: int, starts: int, status: int, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(_PROGRAM)
    (tmp_path / "queue.py").write_text("raise SystemExit('theirs')")  # torchrun imports a module of this name
    (tmp_path / "job.yaml").write_text(_SPEC.format(code=code))
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    script = render("torchrun", str(tmp_path / "job.yaml"))
    done = subprocess.run(["bash"], input=script, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert (len([*tmp_path.glob("start-*")]), done.returncode) == (starts, status), done.stderr
