#!/bin/bash
#SBATCH --nodes=2
export MASTER_ADDR=localhost
srun --kill-on-bad-exit=1 torchrun --nnodes="$SLURM_NNODES" --master_addr=127.0.0.1 train.py
srun --kill-on-bad-exit=1 torchrun --nnodes="$SLURM_NNODES" --rdzv-endpoint localhost:$PORT train.py
