#!/bin/bash
#SBATCH --nodes=1
#SBATCH -c 32
srun hostname
srun --label python train.py
