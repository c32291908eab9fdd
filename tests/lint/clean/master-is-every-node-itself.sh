#!/bin/bash
#SBATCH --nodes=2
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --kill-on-bad-exit=1 torchrun --nnodes="$SLURM_NNODES" --master_addr="$MASTER_ADDR" train.py
