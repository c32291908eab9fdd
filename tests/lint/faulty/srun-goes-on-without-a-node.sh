#!/bin/bash
#SBATCH --nodes=2-8
srun torchrun --nproc_per_node=8 train.py
srun -K hostname
srun --nodes="$SLURM_NNODES" torchrun --nproc_per_node=8 train.py -K
timeout --signal=INT 23h srun -l torchrun --nproc_per_node=8 train.py
