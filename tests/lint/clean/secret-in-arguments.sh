#!/bin/bash
srun --export=ALL python train.py
python train.py --eos-token "</s>" --max-tokens 10 --token-file "$HOME/.token"
