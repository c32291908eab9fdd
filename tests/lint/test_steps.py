"""Each srun command is judged by its own options."""

from __future__ import annotations

from pathlib import Path

import pytest

from lint import lint

HEAD = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=4 --cpus-per-task=8\n"
CPUS, GOES_ON = "[srun-without-cpus]", "[srun-goes-on-without-a-node]"


def rules(folder: Path, text: str) -> list[str]:
    file = folder / "job.sh"
    file.write_text(text)
    return [problem.message.rpartition(" ")[2] for problem in lint([str(file)])]


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("srun -K -c $SLURM_CPUS_PER_TASK python train.py", []),
        ('srun -K -c "$SLURM_CPUS_PER_TASK" python train.py', []),
        ("srun -K -c8 python train.py", []),
        ("srun -K1 -c 8 python train.py", []),
        ("srun -lK -c 8 python train.py", []),
        ("srun -lc8 -K1 python train.py", []),
        ("srun --label --mpi pmix -K -c 8 python train.py", []),
        ("srun $ARGS -K -c 8 python train.py", []),
        ("export SRUN_CPUS_PER_TASK=8 SLURM_KILL_BAD_EXIT=1\nsrun python train.py", []),
        ("args='--kill-on-bad-exit=1 -c 8'\nsrun $args python train.py", []),
        ("args=(-K\n  --cpus-per-task 8)\nsrun ${args[@]} python train.py", []),
        ("base='-c 8'\nargs=\"$base -K\"\nsrun $args python train.py", []),
        ("args='-K'\nsrun $args python train.py", [CPUS]),
        ("args=''\nargs=\"$args -K -c 8\"\nsrun $args python train.py", []),
        ("srun bash -c 'nvidia-smi -L | wc -l | tee smi.log'", []),
        ("srun -c 8 python train.py -K", [GOES_ON]),
        ("srun -l bash -c 'python train.py'", [CPUS, GOES_ON]),
        ("srun -K -c 1 hostname\nsrun python train.py", [CPUS, GOES_ON]),
        ("srun bash -c 'echo $(hostname) $(nvidia-smi | grep MiB)'", []),
        ("srun bash -c 'mkdir -p $SLURM_TMPDIR/data && cp /data/cifar.tar.gz $SLURM_TMPDIR/data/'", []),
        ("srun bash -c 'cd /code; $CMD'", [CPUS, GOES_ON]),
        ("timeout 23h srun python train.py", [CPUS, GOES_ON]),
        ("timeout -k 60 --signal=INT 23h nohup srun python train.py", [CPUS, GOES_ON]),
        ("timeout 23h srun -K -c 8 python train.py", []),
        ("srun -c 8 -N1 -n1 -w $node python train.py &", []),
        ("srun -c 8 --ntasks=1 python train.py", []),
        ("srun -c 8 --nodes=1 python train.py", []),
        ("srun -c 8 --nodes=$SLURM_NNODES python train.py", [GOES_ON]),
    ],
)
def test_step_is_judged_by_its_own_options(tmp_path: Path, script: str, found: list[str]) -> None:
    assert rules(tmp_path, f"{HEAD}{script}\n") == found


def test_variables_that_hold_each_other_end(tmp_path: Path) -> None:
    text = "".join(f'v{number}="-l $v{number + 1} $v{number + 1}"\n' for number in range(60))
    assert rules(tmp_path, f"{HEAD}{text}v60=-$v0\nsrun $v0 -K -c 8 python train.py\n") == []
