#!/bin/bash
#SBATCH --gpus-per-node=2
export MASTER_PORT=29500
torchrun --nproc_per_node=2 --master_port 29501 train.py
torchrun --nproc_per_node=2 --rdzv-endpoint="$head_node:29502" train.py
