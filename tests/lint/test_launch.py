"""A launcher that waits for other nodes is reported only if nothing in the script can start it there."""

from pathlib import Path

import pytest

from lint import lint

TORCHRUN = "torchrun --nnodes=2 --nproc-per-node=8 train.py"


def reported(folder: Path, text: str) -> bool:
    file = folder / "job.sh"
    file.write_text(f"#!/bin/bash\n{text}\n")
    return any("[nothing-starts-the-other-nodes]" in problem.message for problem in lint([str(file)]))


@pytest.mark.parametrize("nodes", ["-N 2", "--nodes=2-4", "--nodes=1\n#SBATCH --nodes=2"])
def test_script_that_requests_several_nodes_is_reported(tmp_path: Path, nodes: str) -> None:
    assert reported(tmp_path, f"#SBATCH {nodes}\n{TORCHRUN}")


@pytest.mark.parametrize(
    "text",
    [
        f"#SBATCH --nodes=1\n{TORCHRUN}",
        f"#SBATCH --nodes=1-2\n{TORCHRUN}",
        f"#SBATCH --ntasks=2\n{TORCHRUN}",
        f"#SBATCH --nodes=2\n#SBATCH --nodes=1\n{TORCHRUN}",
        f"#SBATCH --time=1:00:00\necho\n#SBATCH --nodes=2\n{TORCHRUN}",
        f"#SBATCH --nodes=1\ncat > job.sh <<END\n#!/bin/bash\n#SBATCH --nodes=2\nEND\n{TORCHRUN}",
        f"#SBATCH --nodes=1\n#SBATCH hetjob\n#SBATCH --nodes=4\n{TORCHRUN}",
        f"#SBATCH --nodes=1\n#SBATCH packjob\n#SBATCH --nodes=4\n{TORCHRUN}",
    ],
)
def test_script_that_may_get_one_node_is_not_reported(tmp_path: Path, text: str) -> None:
    assert not reported(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        f"# start it with srun\n{TORCHRUN}  # TODO: srun?",
        f"cd code && exec {TORCHRUN}",
        f"cp ~/.ssh/id_rsa /tmp; {TORCHRUN} --tensor-model-parallel-size 8 --model flux",
        f"echo for training\n{TORCHRUN}",
        f"echo torchrun; pip install ray; pkill -f parallel\n{TORCHRUN}",
        f"train() {{\n  {TORCHRUN}\n}}\ntrain",
        f"function train {{\n  {TORCHRUN}\n}}\ntrain",
        f"for file in *.tar; do tar xf $file; done; until curl -s host; do sleep 1; done\n{TORCHRUN}",
        f"if [ $A ]; then cd a; elif [ $B ]; then cd b; fi\n{TORCHRUN}",
        f'source ~/.bashrc; . venv/bin/activate; eval "$(conda shell.bash hook)"; conda activate x\n{TORCHRUN}',
        f"docker build -t torchrun . && {TORCHRUN}",
        f"host=$(srun --nodes=1 hostname)\n{TORCHRUN}",
        f"nodes=( $(scontrol show hostnames) )\nnames=($nodes)\nhead=${{names[0]}}\n{TORCHRUN}",
        f"[[ -n $A && -f a ]]\n{TORCHRUN}",
        f"PORT=$(python -c 'import socket')\n{TORCHRUN}",
        f"torchrun --standalone prepare.py\n{TORCHRUN}",
        "torchrun --nnodes $SLURM_NNODES train.py",
        'torchrun --nnodes="${SLURM_JOB_NUM_NODES:-1}" train.py',
        "NNODES=$SLURM_NNODES; torchrun --nnodes $NNODES train.py",
        'export NNODES="4"; torchrun --nnodes ${NNODES} train.py',
        "torchrun --nnodes=2 --node-rank=$SLURM_NODEID train.py",
        "torchrun --nnodes=2 --node-rank=${SLURM_PROCID} train.py",
        "NODE_RANK=0\ntorchrun --nnodes=2 --node-rank=$NODE_RANK train.py",
        "python3 -u -m torch.distributed.run --nnodes=2 train.py",
        "apptainer exec --nv image.sif torchrun --nnodes=2 train.py",
        "docker run image python -m torch.distributed.run --nnodes=2 train.py",
        "accelerate launch --multi_gpu --num_machines=2 train.py",
        "accelerate launch --use_fsdp --num_machines=2 train.py",
    ],
)
def test_launcher_that_waits_for_nodes_without_it_is_reported(tmp_path: Path, text: str) -> None:
    assert reported(tmp_path, f"#SBATCH --nodes=2\n{text}")


@pytest.mark.parametrize(
    "text",
    [
        "torchrun --standalone train.py",
        "torchrun --nnodes=1 train.py",
        "torchrun --nnodes=1:2 train.py",
        "torchrun --nnodes=$1 train.py",
        "NNODES=$2\ntorchrun --nnodes=$NNODES train.py",
        "if [ $DEBUG ]; then NNODES=1; else NNODES=2; fi\ntorchrun --nnodes=$NNODES train.py",
        "torchrun --standalone train.py --nnodes=2",
        *(f"torchrun --nnodes=2 {option}" for option in ("--help", "-h", "--version")),
        *(f"docker build -t torchrun --nnodes=2 {folder}" for folder in ("torchrun", ".")),
        "accelerate launch --multi_gpu train.py",
    ],
)
def test_launcher_that_needs_no_other_node_is_not_reported(tmp_path: Path, text: str) -> None:
    assert not reported(tmp_path, f"#SBATCH --nodes=2\n{text}")


@pytest.mark.parametrize("rank", ["1", "$1", "$NODE_RANK", "$SLURM_ARRAY_TASK_ID"])
@pytest.mark.parametrize(
    "launcher", ["torchrun --nnodes=2 --node-rank", "accelerate launch --multi_gpu --num_machines=2 --machine_rank"]
)
def test_part_of_a_run_is_not_reported(tmp_path: Path, launcher: str, rank: str) -> None:
    assert not reported(tmp_path, f"#SBATCH --nodes=2\n{launcher}={rank} train.py")
    assert not reported(tmp_path, f"#SBATCH --nodes=2\nRANK={rank}\n{launcher}=$RANK train.py")


@pytest.mark.parametrize(
    "text",
    [
        f"srun {TORCHRUN}",
        f"srun ./start_everywhere\n{TORCHRUN}",
        f"START=srun\n$START {TORCHRUN}",
        f"if [ -z $STARTED ]; then STARTED=1 srun $0; else {TORCHRUN}; fi",
        f"srun $0 hostname.sh hostname\n{TORCHRUN}",
        f"mpirun -npernode 1 {TORCHRUN}",
        f"ssh node2 '{TORCHRUN}' &\n{TORCHRUN}",
        f"pdsh -w $SLURM_JOB_NODELIST '{TORCHRUN}'",
        f"scontrol show hostnames | xargs -I{{}} yhrun -w {{}} {TORCHRUN}\n{TORCHRUN}",
        f"[ $SLURM_RESTART_COUNT ] || sbatch $0\n{TORCHRUN}",
        f"COMMAND='{TORCHRUN}'\n./start_everywhere $COMMAND",
        f"COMMAND='{TORCHRUN}'\necho $COMMAND",
        f"COMMAND=({TORCHRUN})\necho ${{COMMAND[@]}}",
        f"cat > run.sh <<'END'\n{TORCHRUN}\nEND\n./start_everywhere run.sh",
        *(f"{helper}\n{TORCHRUN}" for helper in ("bash all.sh", "make", "source all.sh", "./all.sh", "python all.py")),
        *(f"{program} start\n{TORCHRUN}" for program in ("flux", "ray", "parallel", "docker run image")),
        f"if ./all.sh; then :; elif ./all.sh; then :; fi\n{TORCHRUN}",
        f"if [ $SLURM_NNODES -gt 1 ]; then ./all.sh; else {TORCHRUN}; fi",
        f"for rank in 0 1; do\n  {TORCHRUN} &\ndone\nsleep 60",
        *(f"apptainer exec image.sif {program} {TORCHRUN}" for program in ("srun", "mpirun", "mpiexec", "ssh node2")),
        "accelerate launch --num_machines=2 train.py",
        "accelerate launch --multi_gpu --num_machines=2 --config_file=deepspeed.yaml train.py",
        "accelerate launch --multi_gpu --num_machines=2 --use_deepspeed train.py",
        "deepspeed --num_nodes=2 train.py",
    ],
)
def test_what_may_start_on_other_nodes_is_not_reported(tmp_path: Path, text: str) -> None:
    assert not reported(tmp_path, f"#SBATCH --nodes=2\n{text}")
