#!/bin/bash
#SBATCH --nodes=1
#SBATCH --cpus-per-task=32
srun hostname
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" python train.py
