#!/bin/bash
ARGS=(
  --nnodes=2
  --node-rank="$rank"  # has no effect
  --rdzv-backend=c10d --rdzv-id=run-7 --rdzv-conf=is_host=1
)
export PET_NODE_RANK="$rank"
torchrun "${ARGS[@]}" train.py
