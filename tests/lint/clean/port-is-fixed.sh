#!/bin/bash
#SBATCH --gpus-per-node=2
MASTER_PORT=$(( 20000 + SLURM_JOB_ID % 10000 ))
torchrun --nproc_per_node=2 --master_port "$MASTER_PORT" train.py
torchrun --nproc_per_node=2 --rdzv-endpoint="$head_node:$MASTER_PORT" train.py
