#!/bin/bash
#SBATCH --nodes=2
#SBATCH --exclusive
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --ntasks-per-node=1 --kill-on-bad-exit=1 \
  torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=8 --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$head_node:29500" train.py
# Only one node merges the results.
torchrun --standalone --nproc-per-node=8 merge.py
