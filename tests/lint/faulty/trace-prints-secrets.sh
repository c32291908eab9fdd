#!/bin/bash
set -euxo pipefail
: "${WANDB_API_KEY:?}"
python train.py
