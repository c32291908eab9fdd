#!/bin/bash
torchrun --standalone --nproc_per_node=auto train.py
torchrun --standalone --nproc-per-node cpu train.py
