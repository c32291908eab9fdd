#!/bin/bash
set -o pipefail
head=$(scontrol show hostnames "${SLURM_STEP_NODELIST:-localhost}" | head -n 1 || echo localhost)
srun --container-image=train.sqsh torchrun --rdzv-endpoint="$head" train.py
