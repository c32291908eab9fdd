#!/bin/bash
#SBATCH --nnodes=2
#SBATCH --ntasks_per_node=1 --gpus-per-nodes 8
#SBATCH --workdir=/scratch --name train
srun --kill-on-bad-exit=1 torchrun train.py
