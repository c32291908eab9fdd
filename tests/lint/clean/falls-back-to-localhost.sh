#!/bin/bash
set -euo pipefail
head=$(scontrol show hostnames "$SLURM_STEP_NODELIST" | head -n 1)
ping -c 1 "$head" || echo "no answer from $head"
srun --container-image=train.sqsh torchrun --rdzv-endpoint="$head" train.py
