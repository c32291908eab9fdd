#!/bin/bash
#SBATCH --nodes=1
#SBATCH -c 32
srun hostname
srun --label python train.py
srun -K -c 1 hostname
srun python train.py -c 8
timeout 23h srun python train.py
srun bash -c 'python -c 8 train.py'
srun_args="--wait=60"
srun $srun_args python train.py
