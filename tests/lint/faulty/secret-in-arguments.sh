#!/bin/bash
srun --export=ALL,WANDB_API_KEY="$WANDB_API_KEY" python train.py
python train.py --hf-token "$HF_TOKEN" --wandb_api_key=0123
