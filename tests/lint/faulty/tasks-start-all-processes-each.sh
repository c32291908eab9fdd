#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
export LAUNCH="torchrun --nnodes=2 --nproc_per_node $GPUS train.py"
srun --kill-on-bad-exit=1 torchrun --nnodes=2 --nproc-per-node=8 train.py
srun --kill-on-bad-exit=1 -n 16 bash -c 'torchrun --nnodes=2 --nproc-per-node=8 train.py'
srun --kill-on-bad-exit=1 $LAUNCH
