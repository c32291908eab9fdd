#!/bin/bash
#SBATCH -N2 -n 2 --gpus-per-node 8
#SBATCH --part=gpu
#SBATCH --container-image=registry.example#train:1
#SBATCH --zebra=of-a-plugin
srun --kill-on-bad-exit=1 torchrun train.py
