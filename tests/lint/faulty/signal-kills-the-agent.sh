#!/bin/bash
#SBATCH --signal=SIGUSR1@90
srun torchrun --nproc_per_node=8 train.py
