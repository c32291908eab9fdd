#!/bin/bash
#SBATCH --requeue
#SBATCH --output=logs/%x-%j.out
srun python train.py
