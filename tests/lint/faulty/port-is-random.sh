#!/bin/bash
#SBATCH --gpus-per-node=2
export MASTER_PORT=$(( RANDOM % 50000 + 10000 ))
torchrun --nproc_per_node=2 --master-port="$(shuf -i 2000-65000 -n 1)" train.py
