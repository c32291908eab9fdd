#!/bin/bash
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
srun python train.py
