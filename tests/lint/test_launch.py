"""A torchrun that only the first node starts is reported only if nothing in the script can start it elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from lint import lint

TORCHRUN = "torchrun --nnodes=2 --nproc-per-node=8 train.py"


def reported(folder: Path, text: str) -> bool:
    file = folder / "job.sh"
    file.write_text(f"#!/bin/bash\n{text}\n")
    return any("[only-the-first-node-trains]" in problem.message for problem in lint([str(file)]))


@pytest.mark.parametrize(
    "text",
    [
        f"#SBATCH -N 2\n{TORCHRUN}",
        f"#SBATCH --nodes=2-4\n{TORCHRUN}",
        f"#SBATCH --nodes=1\n#SBATCH --nodes=2\n{TORCHRUN}",
        f"#SBATCH --nodes=2\n# start it with srun\ncd code && exec {TORCHRUN}",
        f"#SBATCH --nodes=2\ntrain() {{\n  {TORCHRUN}\n}}\ntrain",
        f"#SBATCH --nodes=2\nfor file in *.tar; do tar xf $file; done\n{TORCHRUN}",
        "#SBATCH --nodes=2\nuv run torchrun --standalone train.py",
        "#SBATCH --nodes=2\nNODE_RANK=0\ntorchrun --node-rank=$NODE_RANK train.py",
    ],
)
def test_torchrun_that_only_the_batch_shell_starts_is_reported(tmp_path: Path, text: str) -> None:
    assert reported(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        f"#SBATCH --nodes=1\n{TORCHRUN}",
        f"#SBATCH --nodes=1-2\n{TORCHRUN}",
        f"#SBATCH --ntasks=2\n{TORCHRUN}",
        f"#SBATCH --nodes=2\n#SBATCH --nodes=1\n{TORCHRUN}",
        f"#SBATCH --time=1:00:00\necho\n#SBATCH --nodes=2\n{TORCHRUN}",
        f"#SBATCH --nodes=2\nsrun {TORCHRUN}",
        f"#SBATCH --nodes=2\nSTART=srun\n$START {TORCHRUN}",
        f"#SBATCH --nodes=2\nif [ -z $STARTED ]; then STARTED=1 srun $0; else {TORCHRUN}; fi",
        f"#SBATCH --nodes=2\nmpirun -npernode 1 {TORCHRUN}",
        f"#SBATCH --nodes=2\nssh node2 '{TORCHRUN}' &\n{TORCHRUN}",
        f"#SBATCH --nodes=2\npdsh -w $SLURM_JOB_NODELIST '{TORCHRUN}'",
        f"#SBATCH --nodes=2\nfor node in $nodes; do\n  {TORCHRUN} &\ndone\nwait",
        f"#SBATCH --nodes=2\nwhile read -r node\ndo\n  {TORCHRUN} &\ndone < hosts",
        f"#SBATCH --nodes=2\n$START {TORCHRUN}",
        f"#SBATCH --nodes=2\n./start_everywhere {TORCHRUN}",
        f"#SBATCH --nodes=2\nCOMMAND='{TORCHRUN}'\n./start_everywhere $COMMAND",
        f"#SBATCH --nodes=2\ncat > run.sh <<'END'\n{TORCHRUN}\nEND\n./start_everywhere run.sh",
        f"#SBATCH --nodes=2\n#SBATCH hetjob\n#SBATCH --nodes=4\n{TORCHRUN}",
        f"sbatch <<END\n#!/bin/bash\n#SBATCH --nodes=2\nsrun train.sh\nEND\n{TORCHRUN}",
        "#SBATCH --nodes=2\ntorchrun --node-rank=$1 --nnodes=2 train.py",
        "#SBATCH --nodes=2\ntorchrun --node-rank=$NODE_RANK --nnodes=2 train.py",
        "#SBATCH --nodes=2\naccelerate launch --num_machines=2 train.py",
        "#SBATCH --nodes=2\naccelerate launch --multi_gpu --config_file=deepspeed.yaml train.py",
        "#SBATCH --nodes=2\ndeepspeed train.py",
        "#SBATCH --nodes=2\necho torchrun; pip install torchrun; pkill -f torchrun; which torchrun",
    ],
)
def test_what_may_run_on_all_nodes_is_not_reported(tmp_path: Path, text: str) -> None:
    assert not reported(tmp_path, text)


@pytest.mark.parametrize(
    ("options", "waits"), [("--nnodes=2", True), ("--nnodes=$SLURM_JOB_NUM_NODES", True), ("--standalone", False)]
)
def test_message_says_whether_torchrun_waits_for_the_other_nodes(tmp_path: Path, options: str, waits: bool) -> None:
    file = tmp_path / "job.sh"
    file.write_text(f"#SBATCH --nodes=4\ntorchrun {options} train.py\n")
    (problem,) = lint([str(file)])
    assert ("waits for the others" in problem.message) == waits
