#!/bin/bash
#SBATCH --job-name=train-$USER
#SBATCH --output=$HOME/logs/%j.out --error="${SCRATCH}/%j.err"
#SBATCH -D ~/project
#SBATCH --mail-user=$(whoami)@example.org
#SBATCH -J `date +%F`
srun --kill-on-bad-exit=1 python train.py
