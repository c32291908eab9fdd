#!/bin/bash
export WANDB_API_KEY=0123456789abcdef
HF_TOKEN="hf_abcdef" python train.py
