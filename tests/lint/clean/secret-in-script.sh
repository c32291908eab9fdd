#!/bin/bash
: "${WANDB_API_KEY:?export it before the start}"
export HF_TOKEN=$(cat "$HOME/.secrets/hf")
export TOKENIZERS_PARALLELISM=false
python train.py --eos_token '</s>'
