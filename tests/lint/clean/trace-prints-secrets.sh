#!/bin/bash
set -euo pipefail
: "${WANDB_API_KEY:?}"
python train.py
