#!/bin/bash
srun apptainer exec --nv --cleanenv train.sif python train.py
