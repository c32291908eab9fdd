#!/bin/bash
#SBATCH --gpus-per-node=2
export MASTER_PORT=$(( 20000 + SLURM_JOB_ID % 10000 ))
seed=$RANDOM
torchrun --nproc_per_node=2 --master-port="$MASTER_PORT" train.py --seed="$seed"
