#!/bin/bash
ARGS=(--nnodes=2 --node-rank="$rank" --rdzv-backend=static --rdzv-id=run-7)
torchrun "${ARGS[@]}" train.py
# What another command asks for is no matter of this one's.
torchrun --nnodes=2 --node-rank="$rank" train.py
torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-id=run-8 --rdzv-conf=is_host=1 train.py
