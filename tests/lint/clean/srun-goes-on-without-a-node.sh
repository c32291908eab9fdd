#!/bin/bash
#SBATCH --nodes=2-8
srun --kill-on-bad-exit=1 --wait=60 torchrun --nproc_per_node=8 train.py
