#!/bin/bash
LAUNCHER="torchrun --nnodes 2 --nproc_per_node 8 --rdzv_backend c10d --rdzv_id $SLURM_JOB_ID --rdzv_endpoint $head:20001"
$LAUNCHER --rdzv_conf "is_host=$is_host" train.py
torchrun --nnodes=2 --rdzv-backend=static --node-rank="$rank" --master-addr="$head" train.py
