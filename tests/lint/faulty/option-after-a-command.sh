#!/bin/bash
# A comment is no command.
#SBATCH --job-name=train

set -euo pipefail
#SBATCH --nodes=2
#SBATCH --time=2:00:00
srun --kill-on-bad-exit=1 python train.py
