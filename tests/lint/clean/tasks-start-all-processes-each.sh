#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
# One task per node, whatever sbatch was asked for.
srun --kill-on-bad-exit=1 --ntasks-per-node=1 torchrun --nnodes=2 --nproc-per-node=8 train.py
srun --kill-on-bad-exit=1 --ntasks="$SLURM_NNODES" torchrun --nnodes=2 --nproc-per-node=8 train.py
srun --kill-on-bad-exit=1 -n 2 torchrun --nnodes=2 --nproc-per-node=8 train.py
# One process a task.
srun --kill-on-bad-exit=1 torchrun --nproc-per-node=1 train.py
srun --kill-on-bad-exit=1 python train.py
# No task at all.
torchrun --standalone --nproc-per-node=8 train.py
