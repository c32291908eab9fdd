"""`render.py from`: a spec from a script or manifest, which renders the same job; what it leaves out, it names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from jobspec import targets
from jobspec.artifact import load
from jobspec.plan import Plan

ROOT = Path(__file__).parents[2]
ARTIFACTS = [*sorted((ROOT / "slurm").glob("*.sh")), *sorted((ROOT / "k8s").glob("*.*job*.yaml"))]


def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "render.py"), *words]
    return subprocess.run(command, cwd=ROOT, input=stdin, capture_output=True, text=True, timeout=60)


def size_of(plan: Plan) -> tuple[object, ...]:
    job = plan.job
    return job.nodes, job.procs_per_node, job.gpus, job.gpu, job.time_limit, plan.program, job.device


@pytest.mark.parametrize("file", ARTIFACTS, ids=lambda file: file.name)
def test_spec_from_own_artifact_renders_the_same_job(file: Path, tmp_path: Path) -> None:
    target = "slurm" if file.suffix == ".sh" else file.name.split(".")[1]
    command = re.search(r"# Rendered by `render.py \S+ (\S+)((?: --set \S+)*)`", file.read_text())
    assert command
    options = command[2].split(" --set ")[1:]
    spec = tmp_path / "spec.yaml"
    done = run("from", str(file), "-o", str(spec))
    assert done.returncode == 0, done.stderr
    before = load(targets.load(target), str(ROOT / "jobs" / command[1]), options)
    assert size_of(load(targets.load(target), str(spec))) == size_of(before)


SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=Train_1
#SBATCH --nodes=2
#SBATCH --gres=gpu:a100:8
#SBATCH --ntasks-per-node=1
#SBATCH --time=1-00:00:00
#SBATCH -p gpu
module load cuda/12.4
export NCCL_DEBUG=INFO
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:29500 train.py --lr 0.1
"""


def test_from_and_render_are_one_pipe() -> None:
    spec = run("from", "-", stdin=SCRIPT)
    assert spec.returncode == 0, spec.stderr
    done = run("slurm", "-", stdin=spec.stdout)
    assert done.returncode == 0, done.stderr
    for line in ("--nodes=2", "--gpus-per-node=a100:8", "--time=1-00:00:00", "--partition=gpu", "--job-name=train-1"):
        assert f"#SBATCH {line}\n" in done.stdout
    assert "torchrun --nproc-per-node=8" in done.stdout
    assert "module load cuda/12.4" in done.stdout
    assert "NCCL_DEBUG=INFO" in done.stdout
