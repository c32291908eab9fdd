#!/bin/bash
ARGS=(--nnodes=2 --node-rank="$rank" --rdzv-backend=static --rdzv-id=run-7)
torchrun "${ARGS[@]}" train.py
