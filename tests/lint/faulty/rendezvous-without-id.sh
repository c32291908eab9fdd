#!/bin/bash
torchrun --nnodes=1:4 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-conf=is_host=0 --rdzv-endpoint=head:20001 train.py
