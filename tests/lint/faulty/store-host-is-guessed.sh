#!/bin/bash
LAUNCHER="torchrun --nnodes 2 --nproc_per_node 8 --rdzv_backend c10d --rdzv_id $SLURM_JOB_ID --rdzv_endpoint $head:20001"
$LAUNCHER train.py
