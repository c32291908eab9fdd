#!/usr/bin/env bash
# Rendered by `render.py torchrun array.yaml`; edit the spec, not this file.
# Not used here: image; this script runs in the shell's own environment, not in a container.
# Not used here: time_limit; torchrun has no time limit.
# Not used here: slurm.array; this is one job, not several.
set -euo pipefail

# torchrun reads a flag from each PET_ variable; one that was left over in this shell would change the job.
unset "${!PET_@}"
export OMP_NUM_THREADS=1
export PYTHONUNBUFFERED=1
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

exec torchrun --standalone --local-addr=127.0.0.1 --nproc-per-node=2 --max-restarts=0 \
  -m -- jobs.scripts.array_task --lr=0.003,0.001,0.0003 '--run-dir=~/runs/array' --model=mnist_cnn \
  --dataset=synthetic --optimizer=adam
