#!/bin/bash
export NCCL_DEBUG=INFO
export OMP_NUM_THREADS=4
srun --container-image=train.sqsh python train.py
