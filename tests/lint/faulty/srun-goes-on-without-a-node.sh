#!/bin/bash
#SBATCH --nodes=2-8
srun torchrun --nproc_per_node=8 train.py
