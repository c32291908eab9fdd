#!/bin/bash
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-task=1
srun --gpu-bind=closest python train.py
