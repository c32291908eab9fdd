#!/bin/bash
#SBATCH --signal=B:USR1@120
srun python train.py &
step=$!
trap 'kill -USR1 "$step"; wait "$step"' USR1
wait "$step"
